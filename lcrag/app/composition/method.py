"""A method of a paper: a program, a reward, and which episodes share a baseline."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gin
import numpy as np
from jaxtyping import Bool, Float, Int

from lcrag.data.batches import Coupled, coupled
from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, episode_json
from lcrag.episodes.prompts import answer_language
from lcrag.episodes.routing import CollectionChoice, every_collection
from lcrag.errors import UserError
from lcrag.learning import Trajectory, group_advantages
from lcrag.methods.lcrl.coupling import pivot
from lcrag.methods.translate_r1.tool_use import tool_rates
from lcrag.rewards import Episodes, Reward, TermSum

ProgramOf: TypeAlias = Callable[[Question], Program]

MAY_BE_ZERO = {"budget", "calls", "invalid_limit"}  # settings of programs; all others are at least 1


@gin.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Settings that distinguish one method from another.

    Attributes:
      name: Its name in tables.
      program: Builds a question's episode program from (question, languages of the collection set).
      evaluated: Builds the program of evaluation; None: `program`.
      reward: Scores a batch of finished episodes.
      collections: Selects the collections of a question's program.
      native_collections: Whether every question must have a collection in its language; False for a program that
        searches in other languages, or not at all.
      coupling: Which episodes share a baseline, and so enter a step together. "parallel": a question in all its
        languages, each answered in its own; "pivot": a question's native, English and related versions, all answered
        in the native language; "independent": the samples of one prompt in one language, as in plain GRPO.
      samples: Episodes per prompt.
      normalise_std: Divide advantages by the group's standard deviation.

    Raises:
      UserError: an integer setting of a program is out of range.
    """

    name: str
    program: Callable[[Question, Sequence[str]], Program]
    reward: Reward
    evaluated: Callable[[Question, Sequence[str]], Program] | None = None
    collections: CollectionChoice = every_collection
    native_collections: bool = True
    coupling: Literal["parallel", "pivot", "independent"] = "parallel"
    samples: int = 1
    normalise_std: bool = True

    def __post_init__(self):
        for program in filter(None, (self.program, self.evaluated)):
            _check_numbers(program)

    @property
    def models(self) -> Mapping[str, object]:
        """Frozen models that the reward uses, by their role."""
        return self.reward.models if isinstance(self.reward, TermSum) else {}

    def on(self, languages: Sequence[str]) -> ProgramOf:
        """Returns the function that builds a question's program over one collection set."""
        return lambda question: self.program(question, self.collections(question, languages))

    def evaluated_on(self, languages: Sequence[str]) -> ProgramOf:
        """Returns the same for evaluation."""
        return dataclasses.replace(self, program=self.evaluated or self.program).on(languages)

    def table(self, questions: Sequence[Question], *, group_baseline: bool = True) -> list[Coupled]:
        """Returns the questions in the groups that a training step draws.

        Args:
          questions: All questions.
          group_baseline: Whether advantages come from a group's rewards, and not from a critic.

        Raises:
          UserError: there is no question, or groups are smaller than the baseline or the reward needs.
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
        if group_baseline and self.samples * max(map(len, table)) < 2:
            raise UserError(
                f"groups of one have no baseline to learn from (coupling {self.coupling}, {self.samples} sample a"
                " prompt): set Method.samples to 2 or more, or couple several languages"
            )
        if isinstance(self.reward, TermSum):
            self.reward.check_groups(self.samples * max(map(len, table)))
        return table

    def prompts(self, groups: Sequence[Coupled]) -> list[Question]:
        """Returns the questions of some groups, each repeated for every sample."""
        return [question for group in groups for question in group for _ in range(self.samples)]

    def score(self, records: Sequence[EpisodeRecord], step: int) -> "Scored":
        """Computes rewards and advantages of one rollout's episodes."""
        alone = self.coupling == "independent"
        asked = [record.question for record in records]
        groups = [each.coupling + (f"/{each.language}" if alone else "") for each in asked]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        ids = np.array([numbers[group] for group in groups], np.int32)
        rewards = self.reward(episodes_of(records, ids, step))
        totals = np.asarray(rewards["total"], np.float32)
        advantages = np.asarray(group_advantages(totals, ids, normalise_std=self.normalise_std))
        return Scored(tuple(records), tuple(groups), ids, rewards, advantages)


def _check_numbers(program: Callable[..., Program]) -> None:
    """Rejects out-of-range integer settings of a program."""
    if not isinstance(program, functools.partial):
        return
    for name, value in program.keywords.items():
        least = 0 if name in MAY_BE_ZERO else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise UserError(f"{program.func.__name__}.{name} is {value}: give it {least} or more")


def episodes_of(records: Sequence[EpisodeRecord], group_ids: Int[np.ndarray, "episodes"], step: int = 0) -> Episodes:
    """Returns what rewards may read of finished episodes."""
    return Episodes(
        answers=[record.outcome.answer for record in records],
        golds=[record.question.answers for record in records],
        group_ids=group_ids,
        languages=[answer_language(record.question) for record in records],
        questions=[record.question.text for record in records],
        extra=[record.outcome.extra for record in records],
        known=[record.question.extra for record in records],
        step=step,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """Episodes with their groups, rewards by term and advantages, all in the same order."""

    records: tuple[EpisodeRecord, ...]
    groups: tuple[str, ...]
    group_ids: Int[np.ndarray, "episodes"]
    rewards: dict[str, Float[np.ndarray, "episodes"]]
    advantages: Float[np.ndarray, "episodes"]

    def trajectories(self) -> list[Trajectory]:
        """Returns the episodes as learning reads them."""
        earned = zip(self.records, self.advantages, self.rewards["total"], strict=True)
        return [
            Trajectory(each.tokens, each.by_policy, each.log_probabilities, float(advantage), float(reward))
            for each, advantage, reward in earned
        ]

    @property
    def without_variance(self) -> Bool[np.ndarray, "episodes"]:
        """Whether all rewards of an episode's group are equal, which gives it no advantage.

        False in a group of one: its baseline is a critic's.
        """
        totals = self.rewards["total"]
        _, place, sizes = np.unique(self.group_ids, return_inverse=True, return_counts=True)
        spread = np.array([np.ptp(totals[place == group]) for group in range(len(sizes))])
        return (spread[place] == 0) & (sizes[place] > 1)

    def episodes_json(self) -> Iterator[dict[str, Any]]:
        """Returns the rows of `episodes/step_<n>.jsonl`."""
        for index, (record, group) in enumerate(zip(self.records, self.groups, strict=True)):
            rewards = {name: values[index] for name, values in self.rewards.items()}
            yield episode_json(record, group=group, rewards=rewards)

    def measurements(self) -> dict[str, float]:
        """Returns means over the episodes, by their names in `metrics.jsonl`."""
        names = dict.fromkeys(name for record in self.records for name in record.counts)
        counts = {name: np.mean([record.counts.get(name, 0) for record in self.records]) for name in names}
        lengths = [len(record.tokens) for record in self.records]
        firsts = np.unique(self.group_ids, return_index=True)[1]
        return {
            **{f"reward/{name}": float(np.mean(values)) for name, values in self.rewards.items()},
            **{f"episode/{name}": float(value) for name, value in counts.items()},
            "episode/finished": float(np.mean([record.finished for record in self.records])),
            "episode/answered": float(np.mean([record.outcome.answer is not None for record in self.records])),
            "episode/invalid_actions": float(np.mean([record.outcome.invalid_actions for record in self.records])),
            "episode/tokens": float(np.mean(lengths)),
            "groups/without_variance": float(np.mean(self.without_variance[firsts])),
            **tool_rates(self.records, self.rewards),
        }


def joined(parts: Sequence[Scored]) -> Scored:
    """Joins several rollouts of one step; their groups stay apart."""
    if len(parts) == 1:
        return parts[0]
    firsts = np.cumsum([0, *(part.group_ids.max() + 1 for part in parts[:-1])]).astype(np.int32)
    return Scored(
        records=tuple(record for part in parts for record in part.records),
        groups=tuple(group for part in parts for group in part.groups),
        group_ids=np.concatenate([part.group_ids + first for part, first in zip(parts, firsts, strict=True)]),
        rewards={name: np.concatenate([part.rewards[name] for part in parts]) for name in parts[0].rewards},
        advantages=np.concatenate([part.advantages for part in parts]),
    )
