"""Figures of several runs: reward and length over the steps by method, and results along a study's axis."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from jaxtyping import Float, Int

from lcrag.evaluation.paper_tables import NOT_SHARES, sorted_points
from lcrag.evaluation.plots import COLOURS, GRID, INK, SEARCHES, STYLE, TOTAL, smoothed
from lcrag.evaluation.scoreboard import Scoreboard, point_name
from lcrag.evaluation.tables import METRIC_NAMES
from lcrag.evaluation.training_log import Curve

# What LcRL's figure 6 shows, and the searches.
TRAINING_PANELS = {
    TOTAL: "Training reward",
    "episode/policy_tokens": "Response length (tokens)",
    SEARCHES: "Searches per episode",
}
STUDIED_GROUPS = {"seen": "trained on", "zero_shot": "zero-shot"}
LINES = ("-", (0, (4, 2)), (0, (1, 1.5)))


def draw_method_curves(logs: Mapping[str, Sequence[Mapping[str, Curve]]], path: str | pathlib.Path) -> None:
    """Draws reward, response length and searches over the steps into a PNG (LcRL, figure 6).

    A line is the mean over a method's runs, smoothed over about a tenth of the steps; the band is from the least
    to the largest of its runs.

    Args:
      logs: Method -> the training log of each of its runs.
      path: Where to.
    """
    panels = [name for name in TRAINING_PANELS if any(name in log for own in logs.values() for log in own)]
    with matplotlib.rc_context(STYLE):
        figure, row = _panels(len(panels))
        for name, axes in zip(panels, row, strict=True):
            for number, (method, own) in enumerate(logs.items()):
                curves = [log[name] for log in own if name in log]
                if curves:
                    steps, values = _common(curves)
                    values = np.stack([smoothed(each) for each in values])
                    style = _style(number)
                    axes.plot(steps, values.mean(axis=0), label=method, linewidth=2, **style)
                    band = (values.min(axis=0), values.max(axis=0))
                    axes.fill_between(steps, *band, color=style["color"], alpha=0.15, linewidth=0)
            _finish(axes, TRAINING_PANELS[name], "step")
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
        _legend(figure, row)
        figure.savefig(path)


def draw_study(board: Scoreboard, metric: str, axis: str, path: str | pathlib.Path) -> None:
    """Draws a metric along a study's axis into a PNG, languages trained on and zero-shot ones apart (figures 3 to 5).

    Points are means over a method's runs, bars their standard errors.

    Args:
      board: The results; only trials that have a point are drawn.
      metric: Which number.
      axis: What the points are points of.
      path: Where to.
    """
    points = sorted_points([trial.point for trial in board.trials if trial.point is not None])
    numeric = not any(isinstance(point, str) for point in points)
    series = {group: _series(board, metric, group, points) for group in STUDIED_GROUPS}
    series = {group: lines for group, lines in series.items() if any(lines.values())}
    with matplotlib.rc_context(STYLE):
        figure, row = _panels(len(series))
        for (group, lines), axes in zip(series.items(), row, strict=True):
            for number, (method, line) in enumerate(lines.items()):
                x = [points[place] if numeric else place for place, _, _ in line]
                values, errors = [value for _, value, _ in line], [error for _, _, error in line]
                axes.errorbar(x, values, errors, marker="o", capsize=3, label=method, linewidth=2, **_style(number))
            unit = "" if metric in NOT_SHARES else " (%)"
            _finish(axes, f"{METRIC_NAMES.get(metric, metric)}{unit}: {STUDIED_GROUPS[group]}", axis)
            axes.set_xticks(points if numeric else range(len(points)), list(map(point_name, points)))
        _legend(figure, row)
        figure.savefig(path)


def _series(
    board: Scoreboard, metric: str, group: str, points: Sequence[float | str]
) -> dict[str, list[tuple[int, float, float]]]:
    """Method -> (place among the points, value, standard error or 0), in percent where it is a share."""
    scale = 1 if metric in NOT_SHARES else 100
    models = {trial.model for trial in board.trials}
    series: dict[str, dict[int, tuple[float, float]]] = {}
    for trial in board.trials:
        standing = board.standing(trial.system, metric, ("", group))
        if trial.point is not None and standing is not None:
            line = series.setdefault(trial.method if len(models) == 1 else f"{trial.method}, {trial.model}", {})
            error = 0.0 if np.isnan(standing.standard_error) else standing.standard_error
            line[points.index(trial.point)] = scale * standing.value, scale * error
    return {method: [(place, *line[place]) for place in sorted(line)] for method, line in series.items()}


def _common(
    curves: Sequence[Curve],
) -> tuple[Int[np.ndarray, " points"], Float[np.ndarray, "runs points"]]:
    """The curves over the steps that all of them have."""
    steps = np.array(sorted(set.intersection(*(set(own.tolist()) for own, _ in curves))), np.int64)
    return steps, np.stack([values[np.isin(own, steps)] for own, values in curves])


def _panels(count: int) -> tuple[matplotlib.figure.Figure, Sequence[matplotlib.axes.Axes]]:
    figure = matplotlib.figure.Figure(figsize=(4.3 * count, 3.8), dpi=150, layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, count)).tolist()


def _style(number: int) -> dict:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number // len(COLOURS) % len(LINES)]}


def _finish(axes: matplotlib.axes.Axes, title: str, label: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.03)


def _legend(figure: matplotlib.figure.Figure, row: Sequence[matplotlib.axes.Axes]) -> None:
    """One legend for all panels, below them, where there is more than one line."""
    handles = {label: handle for axes in row for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(handles) > 1:
        placed = {"loc": "outside lower center", "ncols": min(4, len(handles)), "frameon": False, "labelcolor": INK}
        figure.legend(handles.values(), handles.keys(), **placed)
