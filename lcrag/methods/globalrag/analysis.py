"""GlobalRAG's analyses: time by phase (tables 6, 7), plan diversity (appendix G)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lcrag import rewards
from lcrag.evaluation.answered import Answered, Row
from lcrag.evaluation.tables import Cell, Table
from lcrag.evaluation.training_log import Curve

PHASES = ("rollout", "rewards", "update")
DIVERSITY = "plan_diversity"
_RATE = "tokens_per_second/sampled"


class PhaseTimes(NamedTuple):
    """Seconds of each phase and tokens sampled, per step of a training run; means over its steps."""

    seconds: Mapping[str, float]
    tokens: float


def phase_times(log: Mapping[str, Curve]) -> PhaseTimes | None:
    """Returns the times in a log of `read_training_log`; None if it has no rollouts, as with SFT."""
    names = [*(f"seconds/{phase}" for phase in PHASES), _RATE]
    if any(name not in log or not len(log[name][0]) for name in names):
        return None
    seconds = {phase: float(log[f"seconds/{phase}"][1].mean()) for phase in PHASES}
    steps = np.intersect1d(log["seconds/rollout"][0], log[_RATE][0])
    rollout, rate = (values[np.isin(own, steps)] for own, values in (log["seconds/rollout"], log[_RATE]))
    tokens = float((rollout * rate).mean())
    return PhaseTimes(seconds, tokens) if tokens > 0 and sum(seconds.values()) > 0 else None


def phase_table(
    logs: Mapping[str, Sequence[Mapping[str, Curve]]], title: str = "Time of a training step"
) -> Table | None:
    """Tabulates each phase's seconds, share and milliseconds per token, a line per method; None without rollouts.

    Args:
      logs: Method -> the training log of each of its runs, over which a line is the mean.
      title: Title of the table.
    """
    lines = []
    for method, own in logs.items():
        runs = [found for log in own if (found := phase_times(log)) is not None]
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
    planned = [each for each in answered if each.plan is not None]
    scores = rewards.squad_exact_match([each.answer for each in planned], [each.golds for each in planned])
    correct = [(each.cluster, each.language, each.plan) for each, score in zip(planned, scores, strict=True) if score]
    return PlanDiversity(correct=len(correct), distinct=len(set(correct)))


def diversity_rows(
    answered: Sequence[Answered], *, method: str, model: str, split: str, seed: int | str
) -> Iterator[Row]:
    """Yields a row for each data set with a correct, planned answer; `count` is the number of correct samples."""
    for dataset in dict.fromkeys(each.dataset for each in answered):
        found = plan_diversity([each for each in answered if each.dataset == dataset])
        if found.correct:
            yield Row(
                method=method,
                model=model,
                dataset=dataset,
                split=split,
                language="all",
                metric=DIVERSITY,
                value=found.share,
                count=found.correct,
                seed=seed,
            )


def diversity_table(found: Mapping[str, Sequence[PlanDiversity]], title: str) -> Table | None:
    """Tabulates correct samples, their distinct plans and the share, a line per policy or method; None without any.

    Args:
      found: Name -> the plans of each of its runs; plans of different runs count as different.
      title: Title of the table.
    """
    wholes = {
        name: PlanDiversity(sum(each.correct for each in own), sum(each.distinct for each in own))
        for name, own in found.items()
    }
    lines = tuple(
        (Cell(name), Cell(f"{whole.correct:,}"), Cell(f"{whole.distinct:,}"), Cell(f"{whole.share:.3f}"))
        for name, whole in wholes.items()
        if whole.correct
    )
    if not lines:
        return None
    return Table(
        title=title,
        header=("", "correct samples", "distinct plans", "share"),
        sections=(lines,),
        note="Samples whose answer is right (EM, SQuAD); equal plans of one question are counted once.",
    )
