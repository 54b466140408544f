"""Tables of tool use: reward and rate by domain and tier, Pareto shares, selectivity (Translate-R1, tables 3 to 5)."""

import math
from collections.abc import Callable, Mapping, Sequence

from lcrag.evaluation.paper_tables import INTERVAL
from lcrag.evaluation.scoreboard import Scoreboard, SystemScore
from lcrag.evaluation.tables import Cell, Table
from lcrag.evaluation.trials import System
from lcrag.methods.translate_r1.tool_use import (
    REWARD,
    TOOL_RATE,
    WHOLE,
    asked_repeatedly,
    domains_of,
    has_tool_use,
    pareto_shares,
    points_of,
    question_rates,
    score_of,
    system_name,
    tiers_of,
)

Parts = Mapping[str, str]
"""Title of a subset of the questions -> its name."""

_SELECTED: Mapping[str, Callable[[float], bool]] = {
    "never": lambda rate: rate == 0,
    "sometimes": lambda rate: 0 < rate < 1,
    "always": lambda rate: rate == 1,
}


def tool_tables(board: Scoreboard, where: str) -> list[Table]:
    """Returns every table of tool use for which a scoreboard has data; `where` is appended to the titles."""
    if not has_tool_use(board):
        return []
    tables = [reward_and_rate_table(board, f"Reward and tool rate by domain and tier, {where}")]
    tables.append(pareto_table(board, f"Pareto share by tier, {where}"))
    if asked_repeatedly(board):
        tables.append(selectivity_table(board, f"Questions by tool rate, {where}"))
    return tables


def reward_and_rate_table(board: Scoreboard, title: str) -> Table:
    """Returns a table of rewards and tool rates in percent: by domain and tier, by tier, and over all questions."""
    tiers = tiers_of(board)
    groups: list[Parts] = [
        {_read(f"{domain}, {tier}"): f"{domain}/{tier}" for tier in tiers if f"{domain}/{tier}" in board.subsets}
        for domain in domains_of(board)
    ]
    sections = (
        tuple((Cell(name), *_reward_and_rate(board, subset)) for name, subset in parts.items())
        for parts in (*groups, _tier_parts(board))
    )
    names = [system_name(board, system) for system in board.systems]
    return Table(
        title=title,
        header=("", *(f"{name} {unit}" for name in names for unit in ("R %", "C %"))),
        sections=tuple(section for section in sections if section),
        note=(
            f"R: mean reward; C: the share of answers with a call of the tool. {INTERVAL} Of one run: over questions"
            " only. Means are over questions, those of all over languages."
        ),
    )


def pareto_table(board: Scoreboard, title: str) -> Table:
    """Returns a table of the share of cost sensitivities at which each system is best, by tier and overall."""
    shares = {name: pareto_shares(points_of(board, subset)) for name, subset in _tier_parts(board).items()}
    systems = [system_name(board, system) for system in board.systems]
    lines = ((Cell(system), *(_share(own, system) for own in shares.values())) for system in systems)
    return Table(
        title=title,
        header=("", *shares),
        sections=(tuple(lines),),
        note="The share, in percent, of alpha in [0, 1] for which R - alpha C is the highest; equals divide it.",
    )


def selectivity_table(board: Scoreboard, title: str) -> Table:
    """Returns a table of the share of questions for which each system calls the tool never, sometimes or always."""
    return Table(
        title=title,
        header=("", *_SELECTED),
        sections=(tuple((Cell(system_name(board, each)), *_selected(board, each)) for each in board.systems),),
        note="Questions, in percent, by the share of their samples with a call of the tool; all tiers weigh the same.",
    )


def _tier_parts(board: Scoreboard) -> dict[str, str]:
    return {**{_read(tier): tier for tier in tiers_of(board)}, "all": WHOLE}


def _reward_and_rate(board: Scoreboard, subset: str) -> list[Cell]:
    return [
        _percent(score_of(board, system, metric, subset)) for system in board.systems for metric in (REWARD, TOOL_RATE)
    ]


def _percent(standing: SystemScore | None) -> Cell:
    if standing is None:
        return Cell("–")
    half = "" if math.isnan(standing.half) else f" ±{100 * standing.half:.1f}"
    return Cell(f"{100 * standing.value:.1f}{half}")


def _share(shares: Mapping[str, float], system: str) -> Cell:
    if system not in shares:
        return Cell("–")
    return Cell(f"{100 * shares[system]:.0f}", rank="best" if shares[system] == max(shares.values()) else "")


def _selected(board: Scoreboard, system: System) -> Sequence[Cell]:
    rates = question_rates(board, system)
    if not rates:
        return [Cell("–")] * len(_SELECTED)
    return [Cell(f"{100 * sum(weight for rate, weight in rates if own(rate)):.1f}") for own in _SELECTED.values()]


def _read(name: str) -> str:
    return name.replace("_", " ")
