"""GlobalRAG's analysis of plan diversity (appendix G)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gin

from lcrag import rewards
from lcrag.evaluation.metrics import Answered, Row
from lcrag.evaluation.tables import Table, row_of


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


def diversity_table(plans_of_runs: Mapping[str, Sequence[PlanDiversity]], title: str) -> Table | None:
    """Tabulates correct samples, their distinct plans and the share, a line per policy or method; None without any.

    Plans of different runs count as different.
    """
    lines = []
    for name, runs in plans_of_runs.items():
        whole = PlanDiversity(sum(plans.correct for plans in runs), sum(plans.distinct for plans in runs))
        if whole.correct:
            lines.append(row_of(name, whole.correct, whole.distinct, f"{whole.share:.3f}"))
    if not lines:
        return None
    return Table(
        title=title,
        header=("", "correct samples", "distinct plans", "share"),
        sections=(tuple(lines),),
        note="Samples whose answer is right (EM, SQuAD); equal plans of one question are counted once.",
    )


@gin.register
class PlanAnalysis:
    """The diversity of plans over the inference runs of an evaluation, for `Evaluation.analysis`."""

    def rows(
        self, answered: Sequence[Answered], *, method: str, model: str, split: str, seed: int | str
    ) -> Iterator[Row]:
        """Yields a row for each data set with a correct, planned answer; `count` is the number of correct samples."""
        about: dict[str, Any] = {"method": method, "model": model, "split": split, "language": "all", "seed": seed}
        for dataset in dict.fromkeys(sample.dataset for sample in answered):
            plans = plan_diversity([sample for sample in answered if sample.dataset == dataset])
            if plans.correct:
                yield Row(dataset=dataset, metric="plan_diversity", value=plans.share, count=plans.correct, **about)

    def table(self, answered: Mapping[str, Sequence[Answered]]) -> Table | None:
        """Returns the table of all policies."""
        return diversity_table({n: [plan_diversity(rows)] for n, rows in answered.items()}, "Plans of right answers")
