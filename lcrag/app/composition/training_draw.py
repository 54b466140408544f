"""What the steps of a training run draw: known before anything is sampled."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lcrag.app.composition.method import Method
from lcrag.data.batches import Coupled, groups_of_step, share_of
from lcrag.data.questions import Question


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much a training run draws.

    Attributes:
      couplings: Coupled questions of a step.
      question_share: Share of the questions that is used.
      most_rollouts: Most rollouts of a step; above 1 under dynamic sampling.
      seed: Seed of the share and of the order.
    """

    couplings: int
    question_share: float
    most_rollouts: int
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingDraw:
    """The questions of a training run, and which of them a step draws.

    Attributes:
      method: The method, with as many samples as its baseline needs.
      questions: The questions that are trained on.
      table: Their coupled groups.
      couplings: Groups that a step learns from.
      drawn: Groups that a step may sample; more than `couplings` under dynamic sampling.
      seed: Seed of their order.
    """

    method: Method
    questions: Sequence[Question]
    table: Sequence[Coupled]
    couplings: int
    drawn: int
    seed: int

    @property
    def episodes(self) -> int:
        """The most episodes that a step may sample."""
        return self.drawn * self.method.samples * max(map(len, self.table))

    def groups(self, step: int) -> list[Coupled]:
        """Returns the groups of one step.

        Raises:
          UserError: a step needs more groups than there are.
        """
        return groups_of_step(self.table, seed=self.seed, step=step, couplings=self.drawn)


def training_draw(method: Method, questions: Sequence[Question], sizes: Sizes, *, group_baseline: bool) -> TrainingDraw:
    """Returns what a run's steps draw.

    Args:
      method: The method.
      questions: All training questions.
      sizes: How much is drawn of them.
      group_baseline: Whether advantages come from a group's rewards, and not from a critic.

    Raises:
      UserError: the questions make no groups that the method can learn from.
    """
    couplings = sizes.couplings
    if group_baseline:
        method, couplings = method.sized(couplings)
    questions = share_of(questions, sizes.question_share, seed=sizes.seed)
    return TrainingDraw(
        method=method,
        questions=questions,
        table=method.table(questions, group_baseline=group_baseline),
        couplings=couplings,
        drawn=couplings * sizes.most_rollouts,
        seed=sizes.seed,
    )


def composed_draw(arguments: Mapping[str, Any]) -> TrainingDraw:
    """Returns what a run's steps draw, from the composed arguments of `train`; see `training_draw`."""
    sizes = Sizes(**{field.name: arguments[field.name] for field in dataclasses.fields(Sizes)})
    return training_draw(arguments["method"], arguments["questions"], sizes, group_baseline=arguments["critic"] is None)
