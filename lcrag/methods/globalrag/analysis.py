"""GlobalRAG's analyses: time by phase (tables 6, 7), plan diversity (appendix G)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lcrag import rewards
from lcrag.evaluation.metrics import Answered, Row
from lcrag.evaluation.tables import Cell, Curve, Table

PHASES = ("rollout", "rewards", "update")
DIVERSITY = "plan_diversity"
_RATE = "tokens_per_second/sampled"


def phase_table(
    logs: Mapping[str, Sequence[Mapping[str, Curve]]], title: str = "Time of a training step"
) -> Table | None:
    """Tabulates each phase's seconds, share and milliseconds per token, a line per method; None without rollouts.

    `logs` has for each method the training log of each of its runs, over which a line is the mean.
    """
    lines = []
    for method, method_logs in logs.items():
        runs = []  # (seconds of each phase, tokens sampled) per step of a run, means over its steps
        for log in method_logs:
            names = [*(f"seconds/{phase}" for phase in PHASES), _RATE]
            if any(name not in log or not len(log[name][0]) for name in names):
                continue  # SFT has no rollouts
            seconds = {phase: float(log[f"seconds/{phase}"][1].mean()) for phase in PHASES}
            steps = np.intersect1d(log["seconds/rollout"][0], log[_RATE][0])
            rollout, rate = (y[np.isin(x, steps)] for x, y in (log["seconds/rollout"], log[_RATE]))
            tokens = float((rollout * rate).mean())
            if tokens > 0 and sum(seconds.values()) > 0:
                runs.append((seconds, tokens))
        if not runs:
            continue
        numbers = [np.mean([sum(seconds.values()) for seconds, _ in runs])]
        for phase in PHASES:
            numbers.append(np.mean([seconds[phase] for seconds, _ in runs]))
            numbers.append(100 * np.mean([seconds[phase] / sum(seconds.values()) for seconds, _ in runs]))
            numbers.append(np.mean([1000 * seconds[phase] / tokens for seconds, tokens in runs]))
        lines.append((Cell(method), *(Cell(f"{number:.2f}") for number in numbers)))
    if not lines:
        return None
    columns = [f"{phase} {unit}" for phase in PHASES for unit in ("s", "%", "ms/token")]
    note = (
        "Means over the steps; shares are of the three phases together. A rollout includes its searches; a token is one"
        " that was sampled in the step."
    )
    return Table(title=title, header=("", "step s", *columns), sections=(tuple(lines),), note=note)


class PlanDiversity(NamedTuple):
    """Number of samples with a plan and a correct answer; of their plans, equal ones of a question counted once."""

    correct: int
    distinct: int

    @property
    def share(self) -> float:
        """Distinct plans per correct sample; NaN without any. In the paper 144 of 254, 0.57."""
        return self.distinct / self.correct if self.correct else math.nan


def plan_diversity(answered: Sequence[Answered]) -> PlanDiversity:
    """Counts the plans of correct samples, given all samples; correct means SQuAD's exact match."""
    planned = [sample for sample in answered if sample.plan is not None]
    scores = rewards.squad_exact_match([sample.answer for sample in planned], [sample.golds for sample in planned])
    correct = [(s.cluster, s.language, s.plan) for s, score in zip(planned, scores, strict=True) if score]
    return PlanDiversity(correct=len(correct), distinct=len(set(correct)))


def diversity_rows(
    answered: Sequence[Answered], *, method: str, model: str, split: str, seed: int | str
) -> Iterator[Row]:
    """Yields a row for each data set with a correct, planned answer; `count` is the number of correct samples."""
    about: dict[str, Any] = {"method": method, "model": model, "split": split, "language": "all", "seed": seed}
    for dataset in dict.fromkeys(sample.dataset for sample in answered):
        plans = plan_diversity([sample for sample in answered if sample.dataset == dataset])
        if plans.correct:
            yield Row(dataset=dataset, metric=DIVERSITY, value=plans.share, count=plans.correct, **about)


def diversity_table(plans_of_runs: Mapping[str, Sequence[PlanDiversity]], title: str) -> Table | None:
    """Tabulates correct samples, their distinct plans and the share, a line per policy or method; None without any.

    Plans of different runs count as different.
    """
    lines = []
    for name, runs in plans_of_runs.items():
        whole = PlanDiversity(sum(plans.correct for plans in runs), sum(plans.distinct for plans in runs))
        if whole.correct:
            numbers = (f"{whole.correct:,}", f"{whole.distinct:,}", f"{whole.share:.3f}")
            lines.append((Cell(name), *map(Cell, numbers)))
    if not lines:
        return None
    return Table(
        title=title,
        header=("", "correct samples", "distinct plans", "share"),
        sections=(tuple(lines),),
        note="Samples whose answer is right (EM, SQuAD); equal plans of one question are counted once.",
    )
