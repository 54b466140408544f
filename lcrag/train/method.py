"""A method of a paper: an episode program, a reward, and the groups whose rewards form a baseline.

First what it makes, a scored episode, and what the rewards of its group say: which episodes are learned from.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gin
import numpy as np
from jaxtyping import Float, Int

from lcrag.collectives import allgather_bytes, compare_across_processes
from lcrag.data.questions import LANGUAGES, Coupled, Question, coupled
from lcrag.episodes import EpisodeRecord, Program, episode_json
from lcrag.episodes.programs import answer_language, check_settings, program_name, program_settings, with_settings
from lcrag.episodes.searches import CollectionChoice, every_collection
from lcrag.errors import Count, NotNegative, UserError, excerpt, typed
from lcrag.learning import Trajectory, group_advantages
from lcrag.rewards import Episodes, Reward, TermSum
from lcrag.rewards.terms import Values, called, checked_values

# --- Scored episodes and their groups ---


@dataclasses.dataclass(kw_only=True, eq=False)
class Episode:
    """A finished episode with its rewards and advantage, which are computed from those of its group."""

    record: EpisodeRecord  # tokens, texts and outcome
    group: str  # name of the group whose rewards form its baseline
    rewards: Mapping[str, float]  # by term, "total" included; NaN for an episode that could not be scored
    turn_rewards: Mapping[int, float] | None = None  # of the policy's turns, numbered from 0; None: there are none
    advantage: float = 0.0  # of all its tokens; 0 for an episode that could not be scored
    kept: bool = True  # whether the update learns from it; see `lcrag.train.rollout.StepSampler`

    @property
    def scored(self) -> bool:
        """Whether it has a reward; episodes without one are not learned from."""
        return not np.isnan(self.rewards["total"])

    def trajectory(self) -> Trajectory:
        """Returns the episode in the form that learning takes."""
        step_rewards = None if self.turn_rewards is None else at_last_tokens(self.record, self.turn_rewards)
        return self.record.trajectory(self.advantage, reward=self.rewards["total"], step_rewards=step_rewards)

    def json(self, *, advantage: bool = True) -> dict[str, Any]:
        """Returns its row in `episodes/*.jsonl`; `advantage`: whether the update uses the group's advantage."""
        return episode_json(
            self.record,
            group=self.group,
            rewards=dict(self.rewards),
            advantage=self.advantage if advantage and self.scored else None,
        )


def at_last_tokens(record: EpisodeRecord, rewards: Mapping[int, float]) -> Float[np.ndarray, " n"]:
    """Returns token rewards [n] that are 0 except at the last token of each of the policy's turns."""
    values = np.zeros(len(record.tokens), np.float32)
    turns = [number for number, turn in enumerate(record.turns) if turn.by == "policy"]
    for number, reward in rewards.items():
        places = np.flatnonzero(record.by_policy & (record.turn == turns[number]))
        if len(places):
            values[places[-1]] = reward
    return values


def values_of(episodes: Sequence[Episode], term: str = "total") -> Float[np.ndarray, "episodes"]:
    """Returns a reward term of all episodes; NaN where an episode has no such term."""
    return np.array([episode.rewards.get(term, np.nan) for episode in episodes], float)


def numbered(groups: Sequence[str]) -> Int[np.ndarray, "episodes"]:
    """Numbers the groups of episodes in the order in which they first appear."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups], np.int32)


def grouped(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Divides episodes into their groups, in the order in which these first appear."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    return list(groups.values())


def spread_of(group: Sequence[Episode]) -> float:
    """Returns the largest minus the smallest reward of a group; 0 if none of its episodes is scored."""
    totals = values_of([episode for episode in group if episode.scored])
    return float(np.ptp(totals)) if len(totals) else 0.0


def without_variance(group: Sequence[Episode]) -> bool:
    """Whether all rewards of a group are equal, and its advantages therefore 0.

    False for a group of one, whose baseline is computed by a critic.
    """
    return len(group) > 1 and spread_of(group) == 0


def check_scored(records: Sequence[EpisodeRecord], totals: Float[np.ndarray, "episodes"]) -> None:
    """Raises a UserError if there are episodes and none can be scored."""
    if len(records) and np.isnan(totals).all():
        failures = (record.failure for record in records)
        reason = next(filter(None, failures), "a model of the reward gave no scores")
        raise UserError(f"no episode of this rollout can be scored ({reason}): check what the method asks")


def extremes(episodes: Sequence[Episode], max_groups: int) -> list[Episode]:
    """Returns the episodes with the highest and the lowest reward of each group; the first of ties.

    Of all groups of the step, these are the `max_groups` with the largest differences of rewards.
    """
    chosen: set[Episode] = set()
    for group in sorted(grouped(episodes), key=lambda group: -spread_of(group))[:max_groups]:
        scored = [episode for episode in group if episode.scored]
        totals = values_of(scored)
        chosen.update([scored[totals.argmax()], scored[totals.argmin()]] if scored else ())
    return [episode for episode in episodes if episode in chosen]


# --- The method ---


ProgramOf: TypeAlias = Callable[[Question], Program]


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Settings that distinguish one method from another."""

    name: str  # in tables
    program: Callable[[Question, Sequence[str]], Program]  # of a question, for collections in these languages
    reward: Reward  # scores a batch of finished episodes
    collections: CollectionChoice = every_collection  # selects those that a question's program searches
    native_collections: bool = True  # whether every question must have a collection in its language
    # Which prompts a step draws together. "parallel": a question in all its languages, each answered in its own
    # language; "pivot": a question in its native language, English and a related language, all answered in the native
    # language; "independent": every prompt is drawn by itself.
    coupling: Literal["parallel", "pivot", "independent"] = "parallel"
    pivot: Callable[[Sequence[Question], Sequence[str]], list[Coupled]] | None = None  # makes the groups of "pivot"
    # Episodes relative to whose rewards an advantage is computed. "coupled": all episodes of its coupled prompts;
    # "prompt": the samples of its own prompt, as in plain GRPO.
    advantage_group: Literal["coupled", "prompt"] = "coupled"
    samples: Count = 1  # episodes per prompt; see `with_advantage_group`
    normalise_std: bool = True  # whether to divide advantages by the standard deviation of the group's rewards
    # Minimum of that standard deviation. The papers use none (0), and rewards that differ by very little then give
    # advantages as large as any others.
    min_std: NotNegative = 0.0

    def __post_init__(self):
        if self.min_std and not self.normalise_std:
            raise UserError(f"Method.min_std is {self.min_std:g}, which needs Method.normalise_std: set it to 0")
        check_settings(self.program)
        settings = program_settings(self.program)
        for name, value in self.reward.needs.items() if isinstance(self.reward, TermSum) else ():
            if settings.get(name, value) != value:
                raise UserError(
                    f"the reward of {self.name} needs {program_name(self.program)}.{name} = {value}, which is"
                    f" {settings[name]}: bind it, or another reward (r_search_reward.reader = None needs none)"
                )

    @property
    def models(self) -> Mapping[str, object]:
        """Frozen models that the reward uses, by their role."""
        return self.reward.models if isinstance(self.reward, TermSum) else {}

    def program_for(self, languages: Sequence[str]) -> ProgramOf:
        """Returns the function that builds a question's program for collections in `languages`."""
        return lambda question: self.program(question, self.collections(question, languages))

    def with_settings(self, settings: Mapping[str, Any]) -> "Method":
        """Returns a copy of the method with changed settings of its program; see `episodes.programs`."""
        return dataclasses.replace(self, program=with_settings(self.program, settings)) if settings else self

    def with_advantage_group(self, questions_per_step: int) -> tuple["Method", int]:
        """Returns the method and the number of questions per step with which every group has a baseline.

        With `advantage_group="prompt"`, a prompt needs at least two samples. If the experiment has one, a step draws
        half of the questions and samples each prompt twice, so the number of episodes stays the same.
        """
        if self.advantage_group == "coupled" or self.coupling == "independent" or self.samples > 1:
            return self, questions_per_step
        return dataclasses.replace(self, samples=2), max(1, questions_per_step // 2)

    def table(self, questions: Sequence[Question], *, group_baseline: bool = True) -> list[Coupled]:
        """Divides questions into the groups from which training steps draw.

        Without `group_baseline`, a critic computes the advantages, and a group may be a single episode.
        """
        if self.coupling == "independent":
            table: list[Coupled] = [(question,) for question in questions]
        elif self.coupling == "pivot":
            if self.pivot is None:
                raise UserError(
                    "Method.coupling is 'pivot', but nothing makes such groups: set Method.pivot = @pivot, LcRL's, or"
                    " another coupling"
                )
            asked = {question.language for question in questions}
            table = self.pivot(questions, [code for code in LANGUAGES if code in asked])
        else:
            table = coupled(questions)
        if not table:
            raise UserError("there is no question to train on: choose another split or other languages")
        largest = self.samples * (1 if self.advantage_group == "prompt" else max(map(len, table)))
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
            couples = self.reward.couples_languages and self.advantage_group == "coupled"
            if couples and self.coupling == "parallel" and max(map(len, table)) == 1:
                raise UserError(
                    f"{self.name} couples the language versions of a question, but every question is asked in one"
                    " language only, which leaves plain GRPO: train on translated questions (data/jsonl_training.gin),"
                    ' or set Method.coupling = "independent" and another Method.name'
                )
        return table

    def of_step(
        self,
        questions: Sequence[Question],
        questions_per_step: int | None,
        prompts_per_step: int | None,
        *,
        group_baseline: bool = True,
    ) -> tuple["Method", list[Coupled], int]:
        """Returns the method, its table, and the number of its groups that a training step draws.

        With `prompts_per_step` alone, groups have about as many prompts together, however many languages each has.
        """
        count = questions_per_step
        if count is None and prompts_per_step is not None:
            table = self.table(questions, group_baseline=False)
            count = max(1, round(prompts_per_step * len(table) / sum(map(len, table)))) if prompts_per_step > 0 else 0
        if count is None or count < 1:
            raise UserError(
                f"train.questions_per_step is {questions_per_step} and prompts_per_step {prompts_per_step}: give one of"
                " them, 1 or more"
            )
        method, count = self.with_advantage_group(count) if group_baseline else (self, count)
        return method, method.table(questions, group_baseline=group_baseline), count

    def prompts(self, groups: Sequence[Coupled]) -> list[Question]:
        """Returns the questions of groups, each repeated `samples` times."""
        return [question for group in groups for question in group for _ in range(self.samples)]

    def score(self, records: Sequence[EpisodeRecord], step: int) -> list[Episode]:
        """Computes the rewards of finished episodes of whole groups, which do not depend on other groups.

        They may depend on the training step that learns from them.
        """
        alone = self.coupling == "independent" or self.advantage_group == "prompt"
        groups = [record.question.coupling + (f"/{record.question.language}" if alone else "") for record in records]
        values, turns = reward_values(self.reward, records, numbered(groups), step, by_turn=True)
        return [
            Episode(
                record=record,
                group=groups[place],
                rewards={name: float(term[place]) for name, term in values.items()},
                turn_rewards=None if turns is None else turns[place],
            )
            for place, record in enumerate(records)
        ]

    def set_advantages(self, episodes: Sequence[Episode]) -> None:
        """Computes the advantages of all episodes of a rollout, each relative to its group."""
        totals, groups = values_of(episodes).astype(np.float32), numbered([episode.group for episode in episodes])
        check_scored([episode.record for episode in episodes], totals)
        advantages = group_advantages(totals, groups, normalise_std=self.normalise_std, min_std=self.min_std)
        # Sums on GPUs have no fixed order, and all processes must learn the same.
        agreed = allgather_bytes("the advantages", np.asarray(advantages, np.float32).tobytes())[0]
        for episode, advantage in zip(episodes, np.frombuffer(agreed, np.float32), strict=True):
            episode.advantage = float(advantage)


def reward_values(
    reward: Reward,
    records: Sequence[EpisodeRecord],
    ids: Int[np.ndarray, "episodes"],
    step: int = 0,
    *,
    by_turn: bool = False,
) -> tuple[dict[str, Float[np.ndarray, "episodes"]], list[Mapping[int, float]] | None]:
    """Returns every term of a reward by its name, "total" included, and `by_turn` the rewards of single turns, if any.

    The reward is called without the failed episodes (`EpisodeRecord.failure`), whose values are NaN, and may return NaN
    for others that it cannot score. Several processes that run the same episodes must score them equally.
    """
    of_turns = reward.turn_rewards if by_turn and isinstance(reward, TermSum) else None
    turns: list[Mapping[int, float]] | None = None if of_turns is None else [{} for _ in records]
    places = [place for place, record in enumerate(records) if record.failure is None]
    if not places:
        return {"total": np.full(len(records), np.nan)}, turns
    finished = [records[place] for place in places]
    rewarded = Episodes(
        answers=[record.outcome.answer for record in finished],
        golds=[record.question.answers for record in finished],
        group_ids=ids[places],
        languages=[answer_language(record.question) for record in finished],
        questions=[record.question.text for record in finished],
        extra=[record.outcome.extra for record in finished],
        known=[record.question.extra for record in finished],
        step=step,
    )

    def terms_of() -> dict[str, Values]:
        if isinstance(reward, TermSum):
            return reward(rewarded)
        terms = called("total", reward, rewarded)  # a user's own function
        if not isinstance(terms, Mapping) or "total" not in terms:
            said = excerpt(repr(terms))
            raise UserError(f'the reward returned {said}: return a dict of its terms by name, with "total"')
        return {name: checked_values(name, values, rewarded) for name, values in terms.items()}

    scored = compare_across_processes(
        "the reward",
        terms_of,
        lambda terms: {name: np.asarray(term, np.float32).tobytes() for name, term in terms.items()},
    )
    values = {name: np.full(len(records), np.nan) for name in scored}
    for name, term in scored.items():
        values[name][places] = term
    if turns is None or of_turns is None:
        return values, None
    for number, (place, earned) in enumerate(zip(places, called("of single turns", of_turns, rewarded), strict=True)):
        checked_values("of single turns", [sum(earned.values())], rewarded.at([number]))
        turns[place] = earned
    return values, turns
