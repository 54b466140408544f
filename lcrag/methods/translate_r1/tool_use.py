"""Statistics of tool use: rates in training, and Pareto shares (Translate-R1, section 6)."""

import collections
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.episodes import EpisodeRecord

Point = tuple[float, float]  # (reward, cost), both in [0, 1]
CALLS = "tool_calls"


def tool_rates(
    records: Sequence[EpisodeRecord], rewards: Mapping[str, Float[np.ndarray, " episodes"]]
) -> dict[str, float]:
    """Returns `tools/<tier>/rate` and `tools/<tier>/reward` for every tier of a step, and `tools/<domain>/<tier>/...`.

    A rate is the share of episodes with a tool call. A reward is `rewards["task"]`, the reward before the cost of
    calls, if it exists. The result is empty if no program has a tool or no question has a tier.
    """
    earned = rewards.get("task", rewards["total"])
    places: dict[str, list[int]] = collections.defaultdict(list)
    for place, record in enumerate(records):
        question = record.question
        if question.tier and CALLS in record.counts:
            places[question.tier].append(place)
            if question.domain:
                places[f"{question.domain}/{question.tier}"].append(place)
    rates = {}
    for part, chosen in places.items():
        rates[f"tools/{part}/rate"] = float(np.mean([records[place].counts[CALLS] > 0 for place in chosen]))
        rates[f"tools/{part}/reward"] = float(np.mean(earned[chosen]))
    return rates


def pareto_shares(points: Mapping[str, Point]) -> dict[str, float]:
    """Returns the share of cost sensitivities alpha in [0, 1] at which each policy's utility R - alpha C is highest.

    Translate-R1, section 6.3 and figure 1. The result is exact: every utility is a line in alpha, and the upper
    envelope changes only where two lines cross. Policies with equal utility divide their share; the shares sum to 1.
    """
    pairs = itertools.combinations(points.values(), 2)
    crossings = {(one[0] - other[0]) / (one[1] - other[1]) for one, other in pairs if one[1] != other[1]}
    cuts = sorted({0.0, 1.0, *(alpha for alpha in crossings if 0 < alpha < 1)})
    shares = dict.fromkeys(points, 0.0)
    for start, end in itertools.pairwise(cuts):
        middle = (start + end) / 2
        utilities = {name: reward - middle * cost for name, (reward, cost) in points.items()}
        best = max(utilities.values(), default=0.0)
        winners = [name for name, utility in utilities.items() if utility >= best - 1e-12]
        for name in winners:
            shares[name] += (end - start) / len(winners)
    return shares


def frontier(points: Mapping[str, Point]) -> list[str]:
    """Returns the policies with a positive share, in ascending order of cost."""
    shares = pareto_shares(points)
    return sorted((name for name, share in shares.items() if share > 0), key=lambda name: points[name][::-1])
