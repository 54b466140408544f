"""Tables and figures of tool use: reward and rate by domain and tier, Pareto shares, selectivity, rates over training.

Translate-R1, tables 3 to 5 and figures 1, 6 and 7.
"""

import math
import pathlib
import re
from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.ticker
import numpy as np

from lcrag.data.tiers import ALL_TIERS
from lcrag.evaluation.paper_tables import INTERVAL
from lcrag.evaluation.plots import (
    MUTED,
    STYLE,
    add_legend,
    draw_runs,
    finish,
    make_panels,
    save_figure,
    series_style,
    smoothed,
)
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.evaluation.tables import Cell, Rank, Table
from lcrag.evaluation.training_log import Curve
from lcrag.methods.translate_r1.tool_use import (
    REWARD,
    TOOL_RATE,
    WHOLE,
    asked_repeatedly,
    domains_of,
    frontier,
    has_tool_use,
    pareto_shares,
    points_of,
    question_rates,
    score_of,
    system_name,
    tiers_of,
)

Logs = Mapping[str, Sequence[Mapping[str, Curve]]]
"""Method -> the training log of each of its runs."""

TIER_RATE = "tools/{}/rate"
PANELS_IN_ROW = 5
MIN_SHARE = 0.05  # smaller Pareto shares are not written into the figure


def tool_tables(board: Scoreboard, where: str) -> list[Table]:
    """Returns every table of tool use for which a scoreboard has data; `where` is appended to the titles."""
    if not has_tool_use(board):
        return []
    tables = [
        reward_and_rate_table(board, f"Reward and tool rate by domain and tier, {where}"),
        pareto_table(board, f"Pareto share by tier, {where}"),
    ]
    if asked_repeatedly(board):
        tables.append(selectivity_table(board, f"Questions by tool rate, {where}"))
    return tables


def reward_and_rate_table(board: Scoreboard, title: str) -> Table:
    """Returns a table of rewards and tool rates in percent: by domain and tier, by tier, and over all questions."""
    groups = [
        {_read(f"{domain}, {tier}"): f"{domain}/{tier}" for tier in tiers_of(board)} for domain in domains_of(board)
    ]
    sections = []
    for parts in (*groups, tier_parts(board)):
        lines = []
        for name, subset in parts.items():
            if subset not in (WHOLE, *board.subsets):
                continue
            cells = [Cell(name)]
            for system in board.systems:
                for metric in (REWARD, TOOL_RATE):
                    score = score_of(board, system, metric, subset)
                    half = "" if score is None or math.isnan(score.half) else f" ±{100 * score.half:.1f}"
                    cells.append(Cell("–" if score is None else f"{100 * score.value:.1f}{half}"))
            lines.append(tuple(cells))
        sections.append(tuple(lines))
    names = [system_name(board, system) for system in board.systems]
    return Table(
        title=title,
        header=("", *(f"{name} {unit}" for name in names for unit in ("R %", "C %"))),
        sections=tuple(filter(None, sections)),
        note=(
            f"R: mean reward; C: the share of answers with a call of the tool. {INTERVAL} Of one run: over questions"
            " only. Means are over questions, those of all over languages."
        ),
    )


def pareto_table(board: Scoreboard, title: str) -> Table:
    """Returns a table of the share of cost sensitivities at which each system is best, by tier and overall."""
    shares = {name: pareto_shares(points_of(board, subset)) for name, subset in tier_parts(board).items()}
    lines = []
    for system in (system_name(board, system) for system in board.systems):
        cells = [Cell(system)]
        for own in shares.values():
            best: Rank = "best" if system in own and own[system] == max(own.values()) else ""
            cells.append(Cell(f"{100 * own[system]:.0f}", rank=best) if system in own else Cell("–"))
        lines.append(tuple(cells))
    return Table(
        title=title,
        header=("", *shares),
        sections=(tuple(lines),),
        note="The share, in percent, of alpha in [0, 1] for which R - alpha C is the highest; equals divide it.",
    )


def selectivity_table(board: Scoreboard, title: str) -> Table:
    """Returns a table of the share of questions for which each system calls the tool never, sometimes or always."""
    lines = []
    for system in board.systems:
        rates = question_rates(board, system)
        kinds = [0 if rate == 0 else 2 if rate == 1 else 1 for rate, _ in rates]
        shares = [
            sum(weight for own, (_, weight) in zip(kinds, rates, strict=True) if own == kind) for kind in range(3)
        ]
        cells = (Cell(f"{100 * share:.1f}") if rates else Cell("–") for share in shares)
        lines.append((Cell(system_name(board, system)), *cells))
    return Table(
        title=title,
        header=("", "never", "sometimes", "always"),
        sections=(tuple(lines),),
        note="Questions, in percent, by the share of their samples with a call of the tool; all tiers weigh the same.",
    )


def tier_parts(board: Scoreboard) -> dict[str, str]:
    """Returns title -> subset of the questions, for each tier and for all questions."""
    return {**{_read(tier): tier for tier in tiers_of(board)}, "all": WHOLE}


def _read(name: str) -> str:
    return name.replace("_", " ")


def draw_pareto(board: Scoreboard, path: str | pathlib.Path) -> None:
    """Plots every system's reward against its tool rate into a PNG, one panel per tier, with its Pareto share.

    Thin lines are 95 % intervals. A line joins the systems with a positive share, see `pareto_shares`; shares below
    `MIN_SHARE` are not written.
    """
    parts = tier_parts(board)
    names = {system_name(board, system): system for system in board.systems}
    with matplotlib.rc_context(STYLE):
        figure, panels = make_panels(len(parts), a_row=PANELS_IN_ROW)
        for (title, subset), axes in zip(parts.items(), panels, strict=True):
            points = points_of(board, subset)
            shares, best = pareto_shares(points), frontier(points)
            line = 100 * np.array([points[name][::-1] for name in best]).reshape(-1, 2)
            axes.plot(line[:, 0], line[:, 1], color=MUTED, linewidth=1, zorder=1)
            for number, (name, system) in enumerate(names.items()):
                if name in points:
                    reward, rate = points[name]
                    place, style = (100 * rate, 100 * reward), series_style(number, "marker")
                    axes.scatter(*place, s=60, label=name, zorder=2, **style)
                    scores = (score_of(board, system, metric, subset) for metric in (TOOL_RATE, REWARD))
                    across, up = (100 * float(np.nan_to_num(score.half)) for score in scores if score is not None)
                    axes.errorbar(
                        *place, up, across, fmt="none", ecolor=style["color"], linewidth=1, alpha=0.6, zorder=1
                    )
                    if shares[name] >= MIN_SHARE:
                        label = f"{100 * shares[name]:.0f} %"
                        axes.annotate(label, place, (6, 5), textcoords="offset points", fontsize=9)
            finish(axes, title, "tool rate (%)", "reward (%)")
            axes.margins(0.2)
        add_legend(figure, panels)
        save_figure(figure, path)


def draw_selectivity(board: Scoreboard, path: str | pathlib.Path) -> None:
    """Plots the distribution of the tool rates of single questions into a PNG, one panel per domain (figure 7).

    A rate is over the samples of one question; tiers have equal weights.
    """
    domains = domains_of(board) or [WHOLE]
    with matplotlib.rc_context(STYLE):
        figure, panels = make_panels(len(domains), a_row=PANELS_IN_ROW)
        for domain, axes in zip(domains, panels, strict=True):
            rates = {system: question_rates(board, system, domain) for system in board.systems}
            places = np.unique([rate for own in rates.values() for rate, _ in own])
            for number, (system, own) in enumerate(rates.items()):
                if own:
                    found = np.searchsorted(places, [rate for rate, _ in own])
                    shares = 100 * np.bincount(found, [weight for _, weight in own], len(places))
                    style = series_style(number, "linestyle") | series_style(number, "marker")
                    axes.plot(
                        100 * places, shares, markersize=4, linewidth=2, label=system_name(board, system), **style
                    )
            finish(axes, domain.replace("_", " ") or "all questions", "tool rate of a question (%)", "questions (%)")
        add_legend(figure, panels)
        save_figure(figure, path)


def tiers_in(logs: Logs) -> list[str]:
    """Returns the tiers with logged tool rates: the paper's from high to low, then others by name."""
    pattern = re.compile(TIER_RATE.format("([^/]+)"))
    names = sorted({name for own in logs.values() for log in own for name in log})
    found = [match[1] for match in map(pattern.fullmatch, names) if match]
    return sorted(found, key=lambda tier: list(ALL_TIERS).index(tier) if tier in ALL_TIERS else len(ALL_TIERS))


def draw_tool_rates(logs: Logs, path: str | pathlib.Path) -> None:
    """Plots tool rates over the training steps into a PNG, one panel per tier (figure 6).

    A line is the mean over a method's runs, thin ones are the runs; all are smoothed over about a tenth of the steps.
    """
    tiers = tiers_in(logs)
    with matplotlib.rc_context(STYLE):
        figure, panels = make_panels(len(tiers), a_row=PANELS_IN_ROW)
        for tier, axes in zip(tiers, panels, strict=True):
            for number, (method, own) in enumerate(logs.items()):
                curves = [log[TIER_RATE.format(tier)] for log in own if TIER_RATE.format(tier) in log]
                if curves:
                    steps = np.unique(np.concatenate([logged for logged, _ in curves]))
                    values = np.stack([np.interp(steps, logged, smoothed(rates)) for logged, rates in curves])
                    draw_runs(axes, steps, 100 * values, method, series_style(number, "linestyle"))
            finish(axes, tier.replace("_", " "), "step", "tool rate (%)")
            axes.set_ylim(-3, 103)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
        add_legend(figure, panels)
        save_figure(figure, path)
