"""How wide a range of cost sensitivity a policy is the best one for (Translate-R1, section 6.3 and figure 1)."""

import itertools
from collections.abc import Mapping

Point = tuple[float, float]
"""(reward, cost), both in [0, 1]."""


def pareto_shares(points: Mapping[str, Point]) -> dict[str, float]:
    """The share of the cost sensitivities alpha in [0, 1] at which each policy's utility R - alpha C is the highest.

    Exact: every utility is a line in alpha, and which one is the upper envelope changes only where two of them cross.
    Policies that are equally good share what they win; the shares add up to 1.

    Args:
      points: Name of a policy -> its reward and cost.
    """
    cuts = sorted({0.0, 1.0, *_crossings(points)})
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
    """The policies that win somewhere, the one of the least cost first."""
    shares = pareto_shares(points)
    return sorted((name for name, share in shares.items() if share > 0), key=lambda name: points[name][::-1])


def _crossings(points: Mapping[str, Point]) -> set[float]:
    """Where in (0, 1) two utilities are equal."""
    pairs = itertools.combinations(points.values(), 2)
    found = {(one[0] - other[0]) / (one[1] - other[1]) for one, other in pairs if one[1] != other[1]}
    return {alpha for alpha in found if 0 < alpha < 1}
