"""A method of a paper: an episode program, a reward, and the groups whose rewards form a baseline."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gin
import numpy as np
from jaxtyping import Int

from lcrag.composition.programs import check_settings, with_settings
from lcrag.data.batches import Coupled, coupled
from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.episodes.routing import CollectionChoice, every_collection
from lcrag.errors import UserError
from lcrag.learning import group_advantages
from lcrag.limits import Count, NonNegative, check_fields
from lcrag.methods.lcrl.coupling import pivot
from lcrag.rewards import Reward, TermSum
from lcrag.train.scoring import Rewards, Scored, check_scored, reward_values, turn_rewards

ProgramOf: TypeAlias = Callable[[Question], Program]


@gin.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Settings that distinguish one method from another.

    Attributes:
      name: Name of the method in tables.
      program: Builds the episode program of a question from (question, languages of the collections).
      reward: Scores a batch of finished episodes.
      collections: Selects the collections that a question's program searches.
      native_collections: Whether every question must have a collection in its language; False for a program that
        searches in other languages, or not at all.
      coupling: Which prompts a step draws together. "parallel": a question in all its languages, each answered in its
        own language; "pivot": a question in its native language, English and a related language, all answered in the
        native language; "independent": every prompt is drawn by itself.
      baseline: Episodes whose rewards form an episode's baseline. "coupled": all episodes of its coupled prompts;
        "prompt": the samples of its own prompt, as in plain GRPO.
      samples: Episodes sampled per prompt; see `sized`.
      normalise_std: Whether to divide advantages by the standard deviation of the group's rewards.
      min_std: Minimum of that standard deviation. The papers use none (0), and rewards that differ by very little
        then give advantages as large as any others.

    Raises:
      UserError: an integer setting of a program is out of range, or `min_std` is negative or has no effect.
    """

    name: str
    program: Callable[[Question, Sequence[str]], Program]
    reward: Reward
    collections: CollectionChoice = every_collection
    native_collections: bool = True
    coupling: Literal["parallel", "pivot", "independent"] = "parallel"
    baseline: Literal["coupled", "prompt"] = "coupled"
    samples: Count = 1
    normalise_std: bool = True
    min_std: NonNegative = 0.0

    def __post_init__(self):
        check_fields(self)
        if self.min_std and not self.normalise_std:
            raise UserError(f"Method.min_std is {self.min_std:g}, which needs Method.normalise_std: set it to 0")
        check_settings(self.program)

    @property
    def models(self) -> Mapping[str, object]:
        """Frozen models that the reward uses, by their role."""
        return self.reward.models if isinstance(self.reward, TermSum) else {}

    def on(self, languages: Sequence[str]) -> ProgramOf:
        """Returns the function that builds a question's program for collections in `languages`."""
        return lambda question: self.program(question, self.collections(question, languages))

    def with_settings(self, settings: Mapping[str, Any]) -> "Method":
        """Returns a copy of the method with changed settings of its program; see `programs.with_settings`.

        Raises:
          UserError: no program has such a setting, or its value is out of range.
        """
        return dataclasses.replace(self, program=with_settings(self.program, settings)) if settings else self

    def sized(self, couplings: int) -> tuple["Method", int]:
        """Returns the method and the number of couplings per step with which every group has a baseline.

        With `baseline="prompt"`, a prompt needs at least two samples. If the experiment samples each prompt once, a
        step draws half of the couplings and samples each prompt twice, so the number of episodes stays the same.

        Args:
          couplings: Number of coupled questions per step in the experiment.
        """
        if self.baseline == "coupled" or self.coupling == "independent" or self.samples > 1:
            return self, couplings
        return dataclasses.replace(self, samples=2), max(1, couplings // 2)

    def table(self, questions: Sequence[Question], *, group_baseline: bool = True) -> list[Coupled]:
        """Divides questions into the groups from which training steps draw.

        Args:
          questions: All questions.
          group_baseline: Whether advantages are computed from a group's rewards; False: by a critic.

        Raises:
          UserError: there is no question, groups are smaller than the baseline or the reward needs, or a reward that
            couples languages has every question in one language only.
        """
        if self.coupling == "independent":
            table: list[Coupled] = [(question,) for question in questions]
        elif self.coupling == "pivot":
            asked = {question.language for question in questions}
            table = pivot(questions, [code for code in LANGUAGES if code in asked])
        else:
            table = coupled(questions)
        if not table:
            raise UserError("there is no question to train on: choose another split or other languages")
        largest = self.samples * (1 if self.baseline == "prompt" else max(map(len, table)))
        if group_baseline and largest < 2:
            raise UserError(
                f"groups of one have no baseline to learn from (coupling {self.coupling}, {self.samples} sample a"
                " prompt): set Method.samples to 2 or more, or couple several languages"
            )
        if isinstance(self.reward, TermSum):
            if group_baseline and self.reward.turn_rewards is not None:
                raise UserError(
                    f"the reward of {self.name} has rewards of single turns, which only a critic credits: add"
                    " --gin_file=objective/ppo.gin"
                )
            self.reward.check_groups(largest)
            couples = self.reward.couples_languages and self.baseline == "coupled"
            if couples and self.coupling == "parallel" and max(map(len, table)) == 1:
                raise UserError(
                    f"{self.name} couples the language versions of a question, but every question is asked in one"
                    " language only, which leaves plain GRPO: train on translated questions (data/jsonl_training.gin),"
                    ' or set Method.coupling = "independent" and another Method.name'
                )
        return table

    def prompts(self, groups: Sequence[Coupled]) -> list[Question]:
        """Returns the questions of groups, each repeated `samples` times."""
        return [question for group in groups for question in group for _ in range(self.samples)]

    def score(self, records: Sequence[EpisodeRecord], step: int) -> Scored:
        """Computes the rewards and advantages of a rollout's episodes."""
        return self.scored(records, self.rewards(records, step))

    def rewards(self, records: Sequence[EpisodeRecord], step: int) -> Rewards:
        """Computes the rewards of complete groups of episodes; a group's rewards do not depend on other groups."""
        _, ids = self._groups(records)
        return Rewards(
            values=reward_values(self.reward, records, ids, step), turns=turn_rewards(self.reward, records, ids, step)
        )

    def scored(self, records: Sequence[EpisodeRecord], rewards: Rewards) -> Scored:
        """Computes the advantages of a rollout's episodes from their rewards.

        Raises:
          UserError: no episode can be scored.
        """
        check_scored(records, rewards.values["total"])
        groups, ids = self._groups(records)
        totals = np.asarray(rewards.values["total"], np.float32)
        settings: dict[str, Any] = {"normalise_std": self.normalise_std, "min_std": self.min_std}
        advantages = np.asarray(group_advantages(totals, ids, **settings))
        return Scored(tuple(records), groups, ids, rewards.values, advantages, self.min_std, rewards.turns)

    def _groups(self, records: Sequence[EpisodeRecord]) -> tuple[tuple[str, ...], Int[np.ndarray, "episodes"]]:
        """Returns the name and the number of each episode's group."""
        alone = self.coupling == "independent" or self.baseline == "prompt"
        asked = [record.question for record in records]
        groups = tuple(each.coupling + (f"/{each.language}" if alone else "") for each in asked)
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        return groups, np.array([numbers[group] for group in groups], np.int32)
