"""A scored episode, its group's statistics, and the metrics of a step's episodes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.errors import UserError
from lcrag.learning import Trajectory
from lcrag.methods.translate_r1.tool_use import tool_rates


@dataclasses.dataclass(kw_only=True, eq=False)
class Episode:
    """A finished episode with what learning needs.

    Attributes:
      record: Tokens, texts and outcome.
      group: Name of the group whose rewards form its baseline.
      rewards: Values by the name of their term, "total" included; NaN for an episode that could not be scored.
      turn_rewards: Rewards of the policy's turns by turn number (from 0); None: the reward has none.
      advantage: Advantage of all its tokens; 0 for an episode that could not be scored.
    """

    record: EpisodeRecord
    group: str
    rewards: Mapping[str, float]
    turn_rewards: Mapping[int, float] | None = None
    advantage: float = 0.0

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


def group_ids(episodes: Sequence[Episode]) -> Int[np.ndarray, "episodes"]:
    """Numbers the groups of episodes in the order in which they first appear."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(each.group for each in episodes))}
    return np.array([numbers[episode.group] for episode in episodes], np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupStatistics:
    """Statistics of the groups of a step over their scored episodes.

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

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "GroupStatistics":
        """Computes the statistics."""
        _, place, sizes = np.unique(group_ids(episodes), return_inverse=True, return_counts=True)
        totals = values_of(episodes, "total")
        groups = [totals[(place == group) & ~np.isnan(totals)] for group in range(len(sizes))]
        with np.errstate(invalid="ignore"):  # infinite rewards; their update is skipped
            spread = np.array([np.ptp(each) if len(each) else 0.0 for each in groups])
            std = np.array([np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in groups])
        return cls(place=place, sizes=sizes, scored=np.array([len(each) for each in groups]), spread=spread, std=std)

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

    Args:
      episodes: The episodes of a step.
      max_groups: Maximum number of groups; those with the largest differences of rewards are chosen.
    """
    groups, totals = GroupStatistics.of(episodes), values_of(episodes, "total")
    chosen: set[int] = set()
    for group in np.argsort(-groups.spread, kind="stable")[:max_groups]:
        members = np.flatnonzero((groups.place == group) & ~np.isnan(totals))
        chosen.update(members[[totals[members].argmax(), totals[members].argmin()]].tolist() if len(members) else ())
    return sorted(chosen)


def episode_metrics(episodes: Sequence[Episode], min_std: float = 0.0) -> dict[str, float]:
    """Returns metrics by their names in `metrics.jsonl`: means over scored episodes, and counts of the others.

    Args:
      episodes: All episodes that a step sampled.
      min_std: See `Method`.
    """
    scored = [episode for episode in episodes if episode.scored]
    records = [episode.record for episode in scored]
    terms = dict.fromkeys(term for episode in episodes for term in episode.rewards)
    rewards = {term: values_of(scored, term) for term in terms}
    names = dict.fromkeys(name for record in records for name in record.counts)
    counts = {name: np.mean([record.counts.get(name, 0) for record in records]) for name in names}
    refused = [episode.record.counts.get("retrieval_failures", 0) for episode in episodes]
    groups = GroupStatistics.of(episodes)
    questions = {(episode.record.question.coupling, episode.record.question.language) for episode in episodes}
    return {
        **{f"reward/{term}": float(np.mean(values)) for term, values in rewards.items()},
        **{f"episode/{name}": float(value) for name, value in counts.items()},
        "episode/retrieval_failures": float(np.mean(refused)),
        "episode/finished": float(np.mean([record.finished for record in records])),
        "episode/answered": float(np.mean([record.outcome.answer is not None for record in records])),
        "episode/invalid_actions": float(np.mean([record.outcome.invalid_actions for record in records])),
        "episode/tokens": float(np.mean([len(record.tokens) for record in records])),
        "step/episodes": len(episodes),
        "step/prompts": len(questions),
        "episode/scored": len(scored),
        "episode/failed": sum(episode.record.failure is not None for episode in episodes),
        "episode/unscored": len(episodes) - len(scored),
        "groups/without_variance": float(np.mean((groups.spread == 0) & (groups.sizes > 1))),
        "groups/of_one": float(np.mean(groups.scored == 1)),
        "groups/below_floor": float(np.mean((groups.spread > 0) & (groups.std < min_std))),
        **tool_rates(records, rewards),
    }


def dynamic_sampling_metrics(episodes: Sequence[Episode], kept: Bool[np.ndarray, "episodes"], rollouts: int) -> dict:
    """Returns the counts of dynamic sampling by their names in `metrics.jsonl`."""
    ids = group_ids(episodes)
    dropped = [episode.record for episode, keep in zip(episodes, kept, strict=True) if not keep]
    return {
        "dynamic_sampling/rollouts": rollouts,
        "dynamic_sampling/groups_sampled": len(np.unique(ids)),
        "dynamic_sampling/groups_kept": len(np.unique(ids[kept])),
        "dynamic_sampling/episodes_dropped": len(dropped),
        "dynamic_sampling/policy_tokens_dropped": sum(int(record.by_policy.sum()) for record in dropped),
    }
