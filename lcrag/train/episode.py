"""A scored episode, and what the rewards of its group say: which episodes are learned from, and which are shown."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.errors import UserError
from lcrag.learning import Trajectory


@dataclasses.dataclass(kw_only=True, eq=False)
class Episode:
    """A finished episode with what learning needs."""

    record: EpisodeRecord  # tokens, texts and outcome
    group: str  # name of the group whose rewards form its baseline
    rewards: Mapping[str, float]  # by term, "total" included; NaN for an episode that could not be scored
    turn_rewards: Mapping[int, float] | None = None  # of the policy's turns, numbered from 0; None: there are none
    advantage: float = 0.0  # of all its tokens; 0 for an episode that could not be scored

    @property
    def scored(self) -> bool:
        """Whether it has a reward; episodes without one are not learned from."""
        return not np.isnan(self.rewards["total"])

    def trajectory(self) -> Trajectory:
        """Returns the episode in the form that learning takes."""
        record, turns = self.record, self.turn_rewards
        return Trajectory(
            record.tokens,
            record.by_policy,
            record.log_probabilities,
            self.advantage,
            self.rewards["total"],
            None if turns is None else at_last_tokens(record, turns),
        )

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


def values_of(episodes: Sequence[Episode], term: str) -> Float[np.ndarray, "episodes"]:
    """Returns a reward term of all episodes; NaN where an episode has no such term."""
    return np.array([episode.rewards.get(term, np.nan) for episode in episodes], float)


def numbered(groups: Sequence[str]) -> Int[np.ndarray, "episodes"]:
    """Numbers the groups of episodes in the order in which they first appear."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups], np.int32)


def group_ids(episodes: Sequence[Episode]) -> Int[np.ndarray, "episodes"]:
    """Returns the number of each episode's group."""
    return numbered([episode.group for episode in episodes])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupStatistics:
    """Statistics of the groups of a step over their scored episodes."""

    place: Int[np.ndarray, "episodes"]  # index of each episode's group
    sizes: Int[np.ndarray, "groups"]  # episodes, scored or not
    scored: Int[np.ndarray, "groups"]
    spread: Float[np.ndarray, "groups"]  # largest minus smallest reward
    std: Float[np.ndarray, "groups"]

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "GroupStatistics":
        """Computes the statistics."""
        _, place, sizes = np.unique(group_ids(episodes), return_inverse=True, return_counts=True)
        totals = values_of(episodes, "total")
        groups = [totals[(place == group) & ~np.isnan(totals)] for group in range(len(sizes))]
        with np.errstate(invalid="ignore"):  # infinite rewards; their update is skipped
            spread = np.array([np.ptp(rewards) if len(rewards) else 0.0 for rewards in groups])
            std = np.array([np.std(rewards, ddof=1) if len(rewards) > 1 else 0.0 for rewards in groups])
        return cls(place=place, sizes=sizes, scored=np.array(list(map(len, groups))), spread=spread, std=std)

    @property
    def without_variance(self) -> Bool[np.ndarray, "episodes"]:
        """Whether all rewards of each episode's group are equal, and its advantage therefore 0.

        False in a group of one, whose baseline is computed by a critic.
        """
        return ((self.spread == 0) & (self.sizes > 1))[self.place]


def check_scored(records: Sequence[EpisodeRecord], totals: Float[np.ndarray, "episodes"]) -> None:
    """Raises a UserError if there are episodes and none can be scored."""
    if len(records) and np.isnan(totals).all():
        failures = (record.failure for record in records)
        reason = next(filter(None, failures), "a model of the reward gave no scores")
        raise UserError(f"no episode of this rollout can be scored ({reason}): check what the method asks")


def kept_for_update(episodes: Sequence[Episode], *, dynamic_sampling: bool) -> Bool[np.ndarray, "episodes"]:
    """Returns which episodes enter the update; episodes without a score never do.

    With dynamic sampling, groups without variance are left out, unless no group has any.
    """
    scored = np.array([episode.scored for episode in episodes], bool)
    without_variance = GroupStatistics.of(episodes).without_variance
    return scored if not dynamic_sampling or without_variance.all() else scored & ~without_variance


def extremes(episodes: Sequence[Episode], max_groups: int) -> list[int]:
    """Returns the indices of the episodes with the highest and the lowest reward of each group; the first of ties.

    Of all groups of the step, these are the `max_groups` with the largest differences of rewards.
    """
    groups, totals = GroupStatistics.of(episodes), values_of(episodes, "total")
    chosen: set[int] = set()
    for group in np.argsort(-groups.spread, kind="stable")[:max_groups]:
        members = np.flatnonzero((groups.place == group) & ~np.isnan(totals))
        chosen.update(members[[totals[members].argmax(), totals[members].argmin()]].tolist() if len(members) else ())
    return sorted(chosen)
