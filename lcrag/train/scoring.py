"""Scores the episodes of a rollout: rewards by term, groups, advantages and training metrics."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.episodes.agreement import same_everywhere
from lcrag.episodes.prompts import answer_language
from lcrag.errors import UserError
from lcrag.learning import Trajectory
from lcrag.methods.translate_r1.tool_use import tool_rates
from lcrag.rewards import Episodes, Reward, TermSum


def scored_rewards(
    reward: Reward, records: Sequence[EpisodeRecord], group_ids: Int[np.ndarray, "episodes"], step: int = 0
) -> dict[str, Float[np.ndarray, "episodes"]]:
    """Returns every value of a reward; NaN for episodes with a failure (`EpisodeRecord.failure`).

    The reward is called without the failed episodes, and may return NaN for others that it cannot score.

    Raises:
      UserError: no episode at all can be scored, or several processes score them differently.
    """
    values = reward_values(reward, records, group_ids, step)
    check_scored(records, values["total"])
    return values


def reward_values(
    reward: Reward, records: Sequence[EpisodeRecord], group_ids: Int[np.ndarray, "episodes"], step: int = 0
) -> dict[str, Float[np.ndarray, "episodes"]]:
    """Does the same as `scored_rewards`, but does not raise an error if no episode can be scored."""
    places = [place for place, record in enumerate(records) if record.failure is None]
    scored = episodes_of([records[place] for place in places], group_ids[places], step)
    values = same_everywhere("the reward", lambda: reward(scored), _as_bytes) if places else {}
    spread = {name: np.full(len(records), np.nan) for name in values or ("total",)}
    for name, own in values.items():
        spread[name][places] = own
    return spread


def check_scored(records: Sequence[EpisodeRecord], totals: Float[np.ndarray, "episodes"]) -> None:
    """Raises a UserError if there are episodes and none can be scored."""
    if len(records) and np.isnan(totals).all():
        reason = next((record.failure for record in records if record.failure), "a model of the reward gave no scores")
        raise UserError(f"no episode of this rollout can be scored ({reason}): check what the method asks")


def _as_bytes(values: Mapping[str, Float[np.ndarray, "episodes"]]) -> dict[str, bytes]:
    return {name: np.asarray(own, np.float32).tobytes() for name, own in values.items()}


def turn_rewards(
    reward: Reward, records: Sequence[EpisodeRecord], group_ids: Int[np.ndarray, "episodes"], step: int = 0
) -> tuple[Mapping[int, float], ...] | None:
    """Returns the rewards of each episode's turns, or None for a reward without them; see `TermSum.turn_rewards`."""
    if not isinstance(reward, TermSum) or reward.turn_rewards is None:
        return None
    places = [place for place, record in enumerate(records) if record.failure is None]
    values = reward.turn_rewards(episodes_of([records[place] for place in places], group_ids[places], step))
    found = dict(zip(places, values, strict=True))
    return tuple(found.get(place, {}) for place in range(len(records)))


def episodes_of(records: Sequence[EpisodeRecord], group_ids: Int[np.ndarray, "episodes"], step: int = 0) -> Episodes:
    """Returns the view of finished episodes that rewards receive."""
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
class Rewards:
    """Rewards of episodes, in the order of the episodes.

    Attributes:
      values: Values by the name of their term, including "total"; NaN for an episode that could not be scored.
      turns: For each episode, the rewards of the policy's turns by turn number (from 0); None: the reward has no
        rewards of turns.
    """

    values: dict[str, Float[np.ndarray, "episodes"]]
    turns: tuple[Mapping[int, float], ...] | None = None

    def part(self, places: slice) -> "Rewards":
        """Returns the rewards of a slice of the episodes."""
        values = {name: own[places] for name, own in self.values.items()}
        return Rewards(values=values, turns=None if self.turns is None else self.turns[places])


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """Episodes with their groups, rewards by term and advantages, all in the same order.

    Attributes:
      records: The episodes.
      groups: Name of each episode's group.
      group_ids: Number of each episode's group.
      rewards: Values by the name of their term, including "total"; NaN for an episode that could not be scored.
      advantages: Advantage of each episode; 0 for an episode that could not be scored.
      min_std: See `Method`.
      turn_rewards: For each episode, the rewards of the policy's turns by turn number (from 0); None: the reward has no
        rewards of turns.
    """

    records: tuple[EpisodeRecord, ...]
    groups: tuple[str, ...]
    group_ids: Int[np.ndarray, "episodes"]
    rewards: dict[str, Float[np.ndarray, "episodes"]]
    advantages: Float[np.ndarray, "episodes"]
    min_std: float = 0.0
    turn_rewards: tuple[Mapping[int, float], ...] | None = None

    @property
    def scored(self) -> Bool[np.ndarray, "episodes"]:
        """Whether each episode has a reward; episodes without one are not learned from."""
        return ~np.isnan(self.rewards["total"])

    def trajectories(self) -> list[Trajectory]:
        """Returns the episodes in the form that learning takes."""
        turns = self.turn_rewards or (None,) * len(self.records)
        earned = zip(self.records, self.advantages, self.rewards["total"], turns, strict=True)
        return [
            Trajectory(
                each.tokens,
                each.by_policy,
                each.log_probabilities,
                float(advantage),
                float(reward),
                None if own is None else at_last_tokens(each, own),
            )
            for each, advantage, reward, own in earned
        ]

    @property
    def without_variance(self) -> Bool[np.ndarray, "episodes"]:
        """Whether all rewards of each episode's group are equal, and its advantage therefore 0.

        False in a group of one, whose baseline is computed by a critic.
        """
        groups = self._groups()
        return ((groups.spread == 0) & (groups.sizes > 1))[groups.place]

    def _groups(self) -> "_Groups":
        """Statistics of the groups over their scored episodes."""
        _, place, sizes = np.unique(self.group_ids, return_inverse=True, return_counts=True)
        totals = [self.rewards["total"][(place == group) & self.scored] for group in range(len(sizes))]
        with np.errstate(invalid="ignore"):  # infinite rewards; their update is skipped
            spread = np.array([np.ptp(each) if len(each) else 0.0 for each in totals])
            std = np.array([np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in totals])
        scored = np.array([len(each) for each in totals])
        return _Groups(place=place, sizes=sizes, scored=scored, spread=spread, std=std)

    def extremes(self, most_groups: int) -> list[int]:
        """Returns the indices of the episodes with the highest and the lowest reward of each group; the first of ties.

        Args:
          most_groups: Maximum number of groups; those with the largest differences of rewards are chosen.
        """
        groups, totals = self._groups(), self.rewards["total"]
        chosen: set[int] = set()
        for group in np.argsort(-groups.spread, kind="stable")[:most_groups]:
            own = np.flatnonzero((groups.place == group) & self.scored)
            chosen.update(own[[totals[own].argmax(), totals[own].argmin()]].tolist() if len(own) else ())
        return sorted(chosen)

    def episodes_json(
        self, places: Iterable[int] | None = None, *, advantages: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows of `episodes/*.jsonl`.

        Args:
          places: Indices of the episodes to write; None: all.
          advantages: Whether the update uses these advantages; False: it uses those of a critic.
        """
        for place in range(len(self.records)) if places is None else places:
            rewards = {name: values[place] for name, values in self.rewards.items()}
            advantage = self.advantages[place] if advantages and self.scored[place] else None
            yield episode_json(self.records[place], group=self.groups[place], rewards=rewards, advantage=advantage)

    def measurements(self) -> dict[str, float]:
        """Returns metrics by their names in `metrics.jsonl`: means over scored episodes, and counts of the others."""
        records = [record for record, scored in zip(self.records, self.scored, strict=True) if scored]
        rewards = {name: values[self.scored] for name, values in self.rewards.items()}
        names = dict.fromkeys(name for record in records for name in record.counts)
        counts = {name: np.mean([record.counts.get(name, 0) for record in records]) for name in names}
        refused = [record.counts.get("retrieval_failures", 0) for record in self.records]
        groups = self._groups()
        near_ties = (groups.spread > 0) & (groups.std < self.min_std)
        return {
            **{f"reward/{name}": float(np.mean(values)) for name, values in rewards.items()},
            **{f"episode/{name}": float(value) for name, value in counts.items()},
            "episode/retrieval_failures": float(np.mean(refused)),
            "episode/finished": float(np.mean([record.finished for record in records])),
            "episode/answered": float(np.mean([record.outcome.answer is not None for record in records])),
            "episode/invalid_actions": float(np.mean([record.outcome.invalid_actions for record in records])),
            "episode/tokens": float(np.mean([len(record.tokens) for record in records])),
            "step/episodes": len(self.records),
            "step/prompts": len({(each.question.coupling, each.question.language) for each in self.records}),
            "episode/scored": len(records),
            "episode/failed": sum(record.failure is not None for record in self.records),
            "episode/unscored": len(self.records) - len(records),
            "groups/without_variance": float(np.mean((groups.spread == 0) & (groups.sizes > 1))),
            "groups/of_one": float(np.mean(groups.scored == 1)),
            "groups/below_floor": float(np.mean(near_ties)),
            **tool_rates(records, rewards),
        }


def at_last_tokens(record: EpisodeRecord, rewards: Mapping[int, float]) -> Float[np.ndarray, " n"]:
    """Returns token rewards [n] that are 0 except at the last token of each of the policy's turns."""
    values = np.zeros(len(record.tokens), np.float32)
    turns = [number for number, turn in enumerate(record.turns) if turn.by == "policy"]
    for number, reward in rewards.items():
        own = np.flatnonzero(record.by_policy & (record.turn == turns[number]))
        if len(own):
            values[own[-1]] = reward
    return values


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Groups:
    """The groups of a rollout.

    Attributes:
      place: Index of each episode's group.
      sizes: Number of episodes in each group.
      scored: Number of these episodes with a reward.
      spread: Difference between the largest and the smallest of their rewards.
      std: Standard deviation of their rewards.
    """

    place: Int[np.ndarray, "episodes"]
    sizes: Int[np.ndarray, "groups"]
    scored: Int[np.ndarray, "groups"]
    spread: Float[np.ndarray, "groups"]
    std: Float[np.ndarray, "groups"]


def joined(parts: Sequence[Scored]) -> Scored:
    """Concatenates several rollouts of one step; their groups remain separate."""
    if len(parts) == 1:
        return parts[0]
    firsts = np.cumsum([0, *(part.group_ids.max() + 1 for part in parts[:-1])]).astype(np.int32)
    return Scored(
        records=tuple(record for part in parts for record in part.records),
        groups=tuple(group for part in parts for group in part.groups),
        group_ids=np.concatenate([part.group_ids + first for part, first in zip(parts, firsts, strict=True)]),
        rewards={name: np.concatenate([part.rewards[name] for part in parts]) for name in parts[0].rewards},
        advantages=np.concatenate([part.advantages for part in parts]),
        min_std=parts[0].min_std,
        turn_rewards=None if parts[0].turn_rewards is None else sum((part.turn_rewards or () for part in parts), ()),
    )
