"""Reads the questions, prompts and training groups of a command from its composed arguments."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lcrag.composition.stand_ins import Composition
from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.train.method import Method, ProgramOf
from lcrag.train.training_draw import composed_draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A command's run.

    Attributes:
      command: "train" or "evaluate".
      arguments: Its arguments.
      method: Its method.
      program: Builds the program of a question.
      questions: All questions of the run.
      prompts: The prompts to rehearse, in the order of the run.
      groups: Groups of the first training step; empty if nothing is learned.
      missing: Number of groups that are missing for a training step; with any, training would reject the questions.
      prompts_per_step: Prompts of one step, or of one round of an evaluation.
      samples: Episodes of each prompt in a step.
      steps: Training steps, or 1.
      max_tokens: Default limit of a generation; None: the runner's.
    """

    command: str
    arguments: Mapping[str, Any]
    method: Method
    program: ProgramOf
    questions: Sequence[Question]
    prompts: Sequence[Question]
    groups: Sequence[Coupled] = ()
    missing: int = 0
    prompts_per_step: int
    samples: int
    steps: int = 1
    max_tokens: int | None = None

    @property
    def policy(self) -> Policy:
        """The tiny policy."""
        return self.arguments["policy"]

    @property
    def collections(self) -> SearchableCollections:
        """The collections to search."""
        return self.arguments["collections"]

    @property
    def seed(self) -> int:
        """Seed of the order of the questions."""
        return self.arguments["seed"]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the program."""
        return getattr(self.method.program, "keywords", {})


def planned_run(composition: Composition, prompts: int) -> PlannedRun:
    """Returns the run of "train" or "evaluate", with about `prompts` prompts to rehearse.

    Raises:
      UserError: the questions form no group for training.
    """
    return {"train": _training, "evaluate": _evaluation}[composition.command](composition.arguments, prompts)


def _training(arguments: Mapping[str, Any], prompts: int) -> PlannedRun:
    whole = composed_draw(arguments)
    draw = dataclasses.replace(whole, drawn=min(whole.drawn, len(whole.table)))
    first, steps = draw.groups(step=0), arguments["steps"]
    there = sum(map(len, first))
    played = [group for step in range(min(steps, -(-prompts // there))) for group in draw.groups(step)]
    kept = np.searchsorted(np.cumsum([len(group) for group in played]), prompts, side="right")
    return PlannedRun(
        command="train",
        arguments=arguments,
        method=draw.method,
        program=draw.method.on(arguments["collections"].languages),
        questions=draw.questions,
        prompts=[question for group in played[: max(1, int(kept))] for question in group],
        groups=first,
        missing=whole.drawn - draw.drawn,
        prompts_per_step=round(there / len(first) * whole.drawn),
        samples=draw.method.samples,
        steps=steps,
    )


def _evaluation(arguments: Mapping[str, Any], prompts: int) -> PlannedRun:
    evaluation = arguments["evaluation"]
    method, asked = arguments["method"].with_settings(evaluation.program_settings), evaluation.questions
    return PlannedRun(
        command="evaluate",
        arguments=arguments,
        method=method,
        program=method.on(arguments["collections"].languages),
        questions=asked,
        prompts=[asked[row] for row in np.unique(np.linspace(0, len(asked) - 1, prompts).astype(int))] if asked else [],
        prompts_per_step=len(asked),
        samples=sum(evaluation.decodings.values()),
        max_tokens=evaluation.max_tokens,
    )
