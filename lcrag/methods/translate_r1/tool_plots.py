"""Figures of tool use: reward against rate, rates of single questions, and rates over training (Translate-R1)."""

import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import matplotlib
import matplotlib.ticker
import numpy as np

from lcrag.data.tiers import ALL_TIERS
from lcrag.evaluation.plots import (
    MUTED,
    STYLE,
    add_legend,
    draw_runs,
    finish,
    line_style,
    make_panels,
    point_style,
    save_figure,
    smoothed,
)
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.evaluation.training_log import Curve
from lcrag.methods.translate_r1.tool_use import (
    REWARD,
    TOOL_RATE,
    WHOLE,
    domains_of,
    frontier,
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
_PANELS_A_ROW = 5
_LEAST_SHOWN = 0.05


def draw_pareto(board: Scoreboard, path: str | pathlib.Path) -> None:
    """Plots every system's reward against its tool rate into a PNG, one panel per tier, with its Pareto share.

    Thin lines are 95 % intervals. A line joins the systems with a positive share, see `pareto_shares`; shares below
    `_LEAST_SHOWN` are not written.
    """
    parts = {**{tier.replace("_", " "): tier for tier in tiers_of(board)}, "all": WHOLE}
    names = {system_name(board, system): system for system in board.systems}
    with matplotlib.rc_context(STYLE):
        figure, panels = make_panels(len(parts), a_row=_PANELS_A_ROW)
        for (title, subset), axes in zip(parts.items(), panels, strict=True):
            points = points_of(board, subset)
            shares, best = pareto_shares(points), frontier(points)
            axes.plot(*_percents(points[name][::-1] for name in best), color=MUTED, linewidth=1, zorder=1)
            for number, (name, system) in enumerate(names.items()):
                if name in points:
                    place, style = _percents([points[name][::-1]]), point_style(number)
                    axes.scatter(*place, s=60, label=name, zorder=2, **style)
                    scores = (score_of(board, system, metric, subset) for metric in (TOOL_RATE, REWARD))
                    halves = (100 * float(np.nan_to_num(score.half)) for score in scores if score is not None)
                    across, up = ([half] for half in halves)
                    axes.errorbar(
                        *place, up, across, fmt="none", ecolor=style["color"], linewidth=1, alpha=0.6, zorder=1
                    )
                    if shares[name] >= _LEAST_SHOWN:
                        at = (place[0][0], place[1][0])
                        axes.annotate(f"{100 * shares[name]:.0f} %", at, (6, 5), textcoords="offset points", fontsize=9)
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
        figure, panels = make_panels(len(domains), a_row=_PANELS_A_ROW)
        for domain, axes in zip(domains, panels, strict=True):
            rates = {system: question_rates(board, system, domain) for system in board.systems}
            places = np.unique([rate for own in rates.values() for rate, _ in own])
            for number, (system, own) in enumerate(rates.items()):
                if own:
                    found = np.searchsorted(places, [rate for rate, _ in own])
                    shares = 100 * np.bincount(found, [weight for _, weight in own], len(places))
                    style = line_style(number) | point_style(number)
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
        figure, panels = make_panels(len(tiers), a_row=_PANELS_A_ROW)
        for tier, axes in zip(tiers, panels, strict=True):
            for number, (method, own) in enumerate(logs.items()):
                curves = [log[TIER_RATE.format(tier)] for log in own if TIER_RATE.format(tier) in log]
                if curves:
                    steps, values = _aligned(curves)
                    draw_runs(axes, steps, 100 * values, method, line_style(number))
            finish(axes, tier.replace("_", " "), "step", "tool rate (%)")
            axes.set_ylim(-3, 103)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
        add_legend(figure, panels)
        save_figure(figure, path)


def _aligned(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Returns all steps of the curves, and the smoothed curves interpolated at them; [curves, steps]."""
    steps = np.unique(np.concatenate([own for own, _ in curves]))
    return steps, np.stack([np.interp(steps, own, smoothed(values)) for own, values in curves])


def _percents(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """x and y of (cost, reward) pairs."""
    pairs = list(points)
    return [100 * x for x, _ in pairs], [100 * y for _, y in pairs]
