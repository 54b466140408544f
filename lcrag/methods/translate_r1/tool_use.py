"""Statistics of tool use: rates in training, rewards and rates by domain and tier, Pareto shares (section 6)."""

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.data.questions import DOMAINS
from lcrag.data.tiers import ALL_TIERS
from lcrag.episodes import EpisodeRecord
from lcrag.evaluation.scoreboard import Scoreboard, System, SystemScore

Point = tuple[float, float]
"""(reward, cost), both in [0, 1]."""

CALLS, REWARD, TOOL_RATE = "tool_calls", "reward", "tool_rate"
WHOLE = ""  # the subset of all questions


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
    found = {}
    for part, own in places.items():
        found[f"tools/{part}/rate"] = float(np.mean([records[place].counts[CALLS] > 0 for place in own]))
        found[f"tools/{part}/reward"] = float(np.mean(earned[own]))
    return found


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


def has_tool_use(board: Scoreboard) -> bool:
    """Returns whether any system has both rewards and tool calls."""
    return bool(points_of(board, WHOLE))


def domains_of(board: Scoreboard) -> list[str]:
    """Returns the domains of a board's questions: the paper's in its order, then others."""
    return _in_order(board.questions.domains, DOMAINS)


def tiers_of(board: Scoreboard) -> list[str]:
    """Returns the tiers of a board's questions: the paper's from high to low, then others."""
    return _in_order(board.questions.tiers, ALL_TIERS)


def system_name(board: Scoreboard, system: System) -> str:
    """Returns a system's name, with its model if the board has several models."""
    return system[1] if len({model for model, _ in board.systems}) == 1 else f"{system[1]}, {system[0]}"


def score_of(board: Scoreboard, system: System, metric: str, subset: str) -> SystemScore | None:
    """Returns a system's score on a subset of the questions, None if it has none."""
    return board.score(system, metric, (subset, "all")) if subset in ("", *board.subsets) else None


def points_of(board: Scoreboard, subset: str) -> dict[str, Point]:
    """Returns system -> (reward, tool rate) on a subset of the questions, for systems that have both."""
    points = {}
    for system in board.systems:
        reward, rate = (score_of(board, system, metric, subset) for metric in (REWARD, TOOL_RATE))
        if reward is not None and rate is not None:
            points[system_name(board, system)] = (reward.value, rate.value)
    return points


def asked_repeatedly(board: Scoreboard) -> bool:
    """Returns whether any run sampled its questions several times."""
    runs = collections.Counter((trial.system, trial.run) for trial in board.trials)
    return max(runs.values()) > 1


def question_rates(board: Scoreboard, system: System, domain: str = "") -> list[tuple[float, float]]:
    """Returns (tool rate, weight) of each question of each of a system's runs, in one domain or all (figure 7).

    A question's rate is the share of its samples (the inference runs of one run) with a tool call. The weights sum to 1
    in total, and to the same value for each tier.
    """
    asked, called = board.questions, collections.defaultdict(list)
    for trial in board.trials:
        if trial.system == system and TOOL_RATE in trial.scores:
            rows = zip(asked.domains, asked.tiers, asked.clusters, asked.languages, strict=True)
            for (own, *question), rate in zip(rows, trial.scores[TOOL_RATE], strict=True):
                if domain in ("", own) and not np.isnan(rate):
                    called[*question, trial.run].append(float(rate))
    questions = collections.Counter(tier for tier, *_ in called)
    return [(sum(own) / len(own), 1 / (len(questions) * questions[tier])) for (tier, *_), own in called.items()]


def _in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    found = dict.fromkeys(filter(None, names))
    known = [name for name in order if name in found]
    return [*known, *(name for name in found if name not in known)]
