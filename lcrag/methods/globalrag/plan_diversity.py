"""How many ways to a right answer a policy finds: distinct plans among correct samples (GlobalRAG, appendix G)."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from lcrag import rewards
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.rows import Row
from lcrag.evaluation.table import Cell, Table

DIVERSITY = "plan_diversity"


@dataclasses.dataclass(frozen=True)
class PlanDiversity:
    """The plans behind correct answers.

    Attributes:
      correct: Samples that made a plan and whose answer is right.
      distinct: Their plans, equal ones of a question counted once.
    """

    correct: int
    distinct: int

    @property
    def share(self) -> float:
        """Distinct plans by correct samples; NaN without any. In the paper 144 of 254, .57."""
        return self.distinct / self.correct if self.correct else math.nan


def plan_diversity(answered: Sequence[Answered]) -> PlanDiversity:
    """Counts the plans of correct samples.

    Args:
      answered: All samples of every question; right is what SQuAD's exact match says.
    """
    planned = [each for each in answered if each.plan is not None]
    scores = rewards.squad_exact_match([each.answer for each in planned], [each.golds for each in planned])
    correct = [(each.cluster, each.language, each.plan) for each, score in zip(planned, scores, strict=True) if score]
    return PlanDiversity(correct=len(correct), distinct=len(set(correct)))


def diversity_rows(
    answered: Sequence[Answered], *, method: str, model: str, split: str, seed: int | str
) -> Iterator[Row]:
    """A row for each data set in which a plan led to a right answer; its `count` is that of correct samples.

    Args:
      answered: The samples of several inference runs together.
      method: What produced them.
      model: The policy.
      split: The split.
      seed: What tells these inference runs from others.
    """
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
    """A line for each policy or method: correct samples, distinct plans among them, and their share.

    Args:
      found: Name -> the plans of each of its runs; plans of two runs are never equal.
      title: Of the table.

    Returns:
      The table; None if no plan led to a right answer.
    """
    lines = []
    for name, own in found.items():
        whole = PlanDiversity(sum(each.correct for each in own), sum(each.distinct for each in own))
        if whole.correct:
            lines.append(
                (Cell(name), Cell(f"{whole.correct:,}"), Cell(f"{whole.distinct:,}"), Cell(f"{whole.share:.3f}"))
            )
    if not lines:
        return None
    return Table(
        title=title,
        header=("", "correct samples", "distinct plans", "share"),
        sections=(tuple(lines),),
        note="Samples whose answer is right (EM, SQuAD); equal plans of one question are counted once.",
    )
