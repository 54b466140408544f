"""Reward and tool rate of a step's episodes by tier and domain, for the log."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.episodes import EpisodeRecord

CALLS = "tool_calls"


def tool_rates(
    records: Sequence[EpisodeRecord], rewards: Mapping[str, Float[np.ndarray, " episodes"]]
) -> dict[str, float]:
    """`tools/<tier>/rate` and `tools/<tier>/reward` for every tier in the step, and `tools/<domain>/<tier>/...`.

    A rate is the share of episodes with a call of the tool. Nothing where no program has a tool, or no question a tier.

    Args:
      records: Finished episodes.
      rewards: What each earned; "task" is its reward without the cost of calls, where that is named, else "total".
    """
    earned = rewards.get("task", rewards["total"])
    places: dict[str, list[int]] = collections.defaultdict(list)
    for place, record in enumerate(records):
        question = record.question
        if question.tier and CALLS in record.counts:
            places[question.tier].append(place)
            if question.domain:
                places[f"{question.domain}/{question.tier}"].append(place)
    found = {}
    for part, own in places.items():
        found[f"tools/{part}/rate"] = float(np.mean([records[place].counts[CALLS] > 0 for place in own]))
        found[f"tools/{part}/reward"] = float(np.mean(earned[own]))
    return found
