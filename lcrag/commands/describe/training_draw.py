"""The questions that each step of a training run draws, which are determined before anything is sampled."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lcrag.data.batches import Coupled, groups_of_step, share_of
from lcrag.data.questions import Question
from lcrag.train.method import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Number of questions that a training run draws.

    Attributes:
      questions_per_step: Coupled questions per step.
      question_share: Share of the questions that is used.
      max_rollouts: Maximum number of rollouts per step; above 1 with dynamic sampling.
      seed: Seed of the share and of the order.
    """

    questions_per_step: int
    question_share: float
    max_rollouts: int
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingDraw:
    """The questions of a training run and the order in which steps draw them.

    Attributes:
      method: The method, with at least as many samples as its baseline needs.
      questions: The training questions.
      table: The groups of coupled questions.
      couplings: Number of groups from which a step learns.
      drawn: Maximum number of groups that a step samples; more than `couplings` with dynamic sampling.
      seed: Seed of the order of groups.
    """

    method: Method
    questions: Sequence[Question]
    table: Sequence[Coupled]
    couplings: int
    drawn: int
    seed: int

    @property
    def episodes(self) -> int:
        """The maximum number of episodes that a step samples."""
        return self.drawn * self.method.samples * max(map(len, self.table))

    def groups(self, step: int) -> list[Coupled]:
        """Returns the groups of one step.

        Raises:
          UserError: a step needs more groups than there are.
        """
        return groups_of_step(self.table, seed=self.seed, step=step, couplings=self.drawn)


def training_draw(method: Method, questions: Sequence[Question], sizes: Sizes, *, group_baseline: bool) -> TrainingDraw:
    """Returns the questions that the steps of a training run draw.

    Args:
      method: The method.
      questions: All training questions.
      sizes: Number of questions to draw.
      group_baseline: Whether advantages are computed from a group's rewards; False: by a critic.

    Raises:
      UserError: the method cannot learn from groups of these questions; see `Method.table`.
    """
    couplings = sizes.questions_per_step
    if group_baseline:
        method, couplings = method.with_baseline(couplings)
    questions = share_of(questions, sizes.question_share, seed=sizes.seed)
    return TrainingDraw(
        method=method,
        questions=questions,
        table=method.table(questions, group_baseline=group_baseline),
        couplings=couplings,
        drawn=couplings * sizes.max_rollouts,
        seed=sizes.seed,
    )


def composed_draw(arguments: Mapping[str, Any]) -> TrainingDraw:
    """Returns the questions that the steps of `train` draw, from its composed arguments; see `training_draw`."""
    sizes = Sizes(**{field.name: arguments[field.name] for field in dataclasses.fields(Sizes)})
    return training_draw(arguments["method"], arguments["questions"], sizes, group_baseline=arguments["critic"] is None)
