"""What a tool brings and how often it is called, by domain, tier and question (Translate-R1, section 6)."""

import collections
from collections.abc import Iterable

from lcrag.data.domains import DOMAINS
from lcrag.data.tiers import ALL_TIERS
from lcrag.evaluation.scoreboard import Scoreboard, System, SystemScore
from lcrag.methods.translate_r1.pareto import Point

REWARD, TOOL_RATE = "reward", "tool_rate"
WHOLE = ""  # the part of the questions that is all of them


def has_tool_use(board: Scoreboard) -> bool:
    """Whether the answers of some system have both rewards and tool calls."""
    return bool(points_of(board, WHOLE))


def domains_of(board: Scoreboard) -> list[str]:
    """The domains of a board's questions: the paper's in its order, then others."""
    return _in_order((each.domain for each in board.trials[0].answered), DOMAINS)


def tiers_of(board: Scoreboard) -> list[str]:
    """The tiers of a board's questions: the paper's from high to low, then others as they come."""
    return _in_order((each.tier for each in board.trials[0].answered), ALL_TIERS)


def system_name(board: Scoreboard, system: System) -> str:
    """What a system is called; with its model where there are several."""
    return system[1] if len({model for model, _ in board.systems}) == 1 else f"{system[1]}, {system[0]}"


def standing_of(board: Scoreboard, system: System, metric: str, subset: str) -> SystemScore | None:
    """A system's result in a part of the questions, None where it has none."""
    return board.standing(system, metric, (subset, "all")) if subset in ("", *board.subsets) else None


def points_of(board: Scoreboard, subset: str) -> dict[str, Point]:
    """System -> (reward, tool rate) in a part of the questions; only systems that have both."""
    points = {}
    for system in board.systems:
        reward, rate = (standing_of(board, system, metric, subset) for metric in (REWARD, TOOL_RATE))
        if reward is not None and rate is not None:
            points[system_name(board, system)] = (reward.value, rate.value)
    return points


def asked_repeatedly(board: Scoreboard) -> bool:
    """Whether some run sampled its questions more than once."""
    runs = collections.Counter((trial.system, trial.run) for trial in board.trials)
    return max(runs.values()) > 1


def question_rates(board: Scoreboard, system: System, domain: str = "") -> list[tuple[float, float]]:
    """(tool rate, weight) of each of a system's questions, those of each of its runs for themselves (figure 7).

    A question's rate is the share of its samples, the inference runs of one run, in which the tool was called. The
    weights add up to 1, and are in sum the same for each tier.

    Args:
      board: The results.
      system: Whose.
      domain: Of the questions; empty: all.
    """
    called: dict[tuple[str, ...], list[bool]] = collections.defaultdict(list)
    for trial in board.trials:
        for each in trial.answered if trial.system == system else ():
            if each.tool_calls is not None and domain in ("", each.domain):
                called[each.tier, trial.run, each.cluster, each.language].append(each.tool_calls > 0)
    questions = collections.Counter(tier for tier, *_ in called)
    return [(sum(own) / len(own), 1 / (len(questions) * questions[tier])) for (tier, *_), own in called.items()]


def _in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    found = dict.fromkeys(filter(None, names))
    known = [name for name in order if name in found]
    return [*known, *(name for name in found if name not in known)]
