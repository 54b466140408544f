"""GlobalRAG's figures of costs (figures 6, 8 to 12); apart, because Matplotlib takes a second to import."""

import pathlib
from collections.abc import Sequence

import matplotlib
import matplotlib.collections
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS
from lcrag.evaluation.plots import INK, STYLE, add_legend, finish, make_panels, save_figure, series_style
from lcrag.evaluation.scoreboard import Part, Scoreboard, System

WHOLE: Part = ("", "all")
_LARGEST_BUBBLE = 900.0  # points²


def mean_of(board: Scoreboard, system: System, metric: str) -> float:
    """Returns a system's mean over all languages, NaN without one."""
    standing = board.score(system, metric, WHOLE) if system in board.systems else None
    return np.nan if standing is None else standing.value


def has_searches(boards: Sequence[Scoreboard]) -> bool:
    """Whether some system made searches."""
    return any(mean_of(board, system, "searches") > 0 for board in boards for system in board.systems)


def has_costs(boards: Sequence[Scoreboard]) -> bool:
    """Whether the number of tokens is known for some system."""
    return any(mean_of(board, system, EFFICIENCY) > 0 for board in boards for system in board.systems)


def draw_searches(boards: Sequence[Scoreboard], path: str | pathlib.Path) -> None:
    """Plots the searches of every system on every data set, with 95 % intervals, into a PNG (GlobalRAG, figure 6)."""
    systems = _systems(boards)
    width = 0.8 / len(systems)
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(2.2 + 1.6 * len(boards), 3.8), dpi=150, layout="constrained")
        axes = figure.subplots()
        for number, system in enumerate(systems):
            scores = [board.score(system, "searches", WHOLE) if system in board.systems else None for board in boards]
            heights, halves = ([getattr(each, name, 0.0) for each in scores] for name in ("value", "half"))
            places = np.arange(len(boards)) + (number - (len(systems) - 1) / 2) * width
            axes.bar(places, heights, width, label=_label(system, systems), **series_style(number, "hatch"))
            axes.errorbar(places, heights, np.nan_to_num(halves), fmt="none", ecolor=INK, capsize=2, linewidth=1)
        finish(axes, "Searches per question", "")
        axes.set_xticks(range(len(boards)), [board.dataset for board in boards])
        add_legend(figure, [axes])
        save_figure(figure, path)


def draw_costs(boards: Sequence[Scoreboard], path: str | pathlib.Path) -> None:
    """Plots performance against all tokens of a question into a PNG, a panel per data set (GlobalRAG, figures 8 to 12).

    A bubble's area is the score per log token, scaled so that the largest of all panels has a fixed size.
    """
    systems = _systems(boards)
    largest = np.nanmax([mean_of(board, system, EFFICIENCY) for board in boards for system in board.systems])
    with matplotlib.rc_context(STYLE):
        figure, row = make_panels(len(boards))
        for board, axes in zip(boards, row, strict=True):
            for number, system in enumerate(systems):
                exact, f1, tokens = (mean_of(board, system, metric) for metric in EFFICIENCY_INPUTS)
                area = _LARGEST_BUBBLE * mean_of(board, system, EFFICIENCY) / largest
                score, label = 50 * (exact + f1), _label(system, systems)
                axes.scatter(
                    tokens, score, s=np.nan_to_num(area), alpha=0.75, label=label, **series_style(number, "marker")
                )
            finish(axes, board.dataset, "tokens a question, retrieved ones included", "mean of EM and F1 (%)")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
            axes.margins(0.25)
        legend = add_legend(figure, row)
        for handle in legend.legend_handles if legend else ():
            if isinstance(handle, matplotlib.collections.PathCollection):  # else bubbles as large as in some panel
                handle.set_sizes([60.0])
        save_figure(figure, path)


def _systems(boards: Sequence[Scoreboard]) -> list[System]:
    return list(dict.fromkeys(system for board in boards for system in board.systems))


def _label(system: System, systems: Sequence[System]) -> str:
    return system[1] if len({model for model, _ in systems}) == 1 else f"{system[1]}, {system[0]}"
