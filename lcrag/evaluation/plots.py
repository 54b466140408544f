"""Figures: training curves, results along the axis of a study, differences."""

import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError
from lcrag.evaluation.metrics import METRIC_NAMES
from lcrag.evaluation.scoreboard import (
    NOT_SHARES,
    UNRANKED,
    Marking,
    Scoreboard,
    part_differences,
    point_name,
    study_points,
)
from lcrag.evaluation.tables import TOTAL, Curve
from lcrag.files import replacing

SEARCHES = "episode/searches"
LOSSES = {"loss/supervised": "training", "validation/loss": "validation"}
# LcRL's figure 6, and the searches.
TRAINING_PANELS = {
    TOTAL: "Training reward",
    "episode/policy_tokens": "Response length (tokens)",
    SEARCHES: "Searches per episode",
}
STUDIED_GROUPS = {"seen": "training languages", "zero_shot": "zero-shot"}

INK, MUTED, GRID = "#1b1f24", "#6b7480", "#e6e8eb"
COLOURS = ("#0b5fa5", "#d9730d", "#2a8f5c", "#8e4ec6", "#c2255c", "#0c8599", "#7a4a1e", "#4a5568")
PENALTY_COLOUR, SEARCHES_COLOUR = "#c2255c", "#d9730d"
SIGNS = {0: "#8a94a0", 1: "#2a8f5c", -1: "#c2255c"}
DIFFERENCES_A_ROW = 4
NAME_WIDTH = 11  # characters of a line below an axis
KINDS: Mapping[str, Sequence[Any]] = {
    "linestyle": ("-", (0, (4, 2)), (0, (1, 1.5))),
    "marker": ("o", "D", "^"),
}
STYLE = {
    "font.size": 10,
    "text.parse_math": False,  # a method's name may hold $
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}


def draw_training_curves(curves: Mapping[str, Curve], path: str | pathlib.Path, title: str) -> None:
    """Draws the rewards, penalties and searches of a training run, or the losses of fine-tuning, into a PNG.

    The thin line shows every step's value, the thick one a centred moving average over about a tenth of the run. Terms
    that are never positive (penalties) have a separate panel, because of their scale.
    """
    panels: list[tuple[str, list[str], Sequence[str]]]  # (title, names of curves, colours)
    if TOTAL in curves:
        terms = [name for name in curves if name.startswith("reward/") and name != TOTAL]
        penalties = [name for name in terms if (curves[name][1] <= 0).all() and (curves[name][1] < 0).any()]
        panels = [
            ("Reward", [TOTAL, *(name for name in terms if name not in penalties)], COLOURS),
            ("Penalty", penalties, (PENALTY_COLOUR, *COLOURS)),
            ("Searches per episode", [SEARCHES] if SEARCHES in curves else [], (SEARCHES_COLOUR,)),
        ]
    else:
        panels = [("Loss, nats per token", [name for name in LOSSES if name in curves], COLOURS)]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        raise UserError(f"the training log has neither {TOTAL!r} nor {min(LOSSES)!r}: draw the log of a training run")
    with matplotlib.rc_context(STYLE):
        figure, row = make_panels(len(panels), height=3.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
        for axes, (name, lines, colours) in zip(row, panels, strict=True):
            labels = [LOSSES.get(line, line.partition("/")[2].replace("_", " ")) for line in lines]
            for number, (line, label) in enumerate(zip(lines, labels, strict=True)):
                (steps, values), colour = curves[line], colours[number % len(colours)]
                alpha, width, style = (0.3, 2.4, "-") if number == 0 else (0.15, 1.6, (0, (4, 2)))
                axes.plot(steps, values, color=colour, linewidth=0.8, alpha=alpha)
                axes.plot(steps, smoothed(values), color=colour, linewidth=width, linestyle=style, label=label)
            named = len(lines) > 1 or name.lower().endswith("episode")
            finish(axes, name if named else f"{name}: {labels[0]}", "step", margin=0.02)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
            if len(lines) > 1:
                axes.legend(frameon=False, labelcolor=INK, loc="best", fontsize=9)
        save_figure(figure, path)


def save_figure(figure: matplotlib.figure.Figure, path: str | pathlib.Path) -> None:
    """Replaces a PNG file by a figure atomically."""
    with replacing(pathlib.Path(path)) as temporary:
        figure.savefig(temporary, format="png")


def smoothed(values: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """Returns the centred moving average over about a tenth of the points (at least 3), shorter at both ends."""
    half = max(1, len(values) // 20)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def draw_method_curves(logs: Mapping[str, Sequence[Mapping[str, Curve]]], path: str | pathlib.Path) -> None:
    """Draws reward, response length and searches of several methods over the steps into a PNG (LcRL, figure 6).

    A line is the mean over a method's runs, thin ones are the runs; all are smoothed over about a tenth of the steps.
    """
    panels = [name for name in TRAINING_PANELS if any(name in log for runs in logs.values() for log in runs)]
    with matplotlib.rc_context(STYLE):
        figure, row = make_panels(len(panels))
        for name, axes in zip(panels, row, strict=True):
            for number, (method, runs) in enumerate(logs.items()):
                curves = [log[name] for log in runs if name in log]
                if curves:
                    common = set.intersection(*(set(steps.tolist()) for steps, _ in curves))
                    steps = np.array(sorted(common), np.int64)
                    values = np.stack([smoothed(values[np.isin(own_steps, steps)]) for own_steps, values in curves])
                    draw_runs(axes, steps, values, method, series_style(number, "linestyle"))
            finish(axes, TRAINING_PANELS[name], "step")
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
        add_legend(figure, row)
        save_figure(figure, path)


def draw_runs(
    axes: matplotlib.axes.Axes,
    steps: Int[np.ndarray, " points"],
    values: Float[np.ndarray, "runs points"],
    label: str,
    style: Mapping[str, Any],
) -> None:
    """Draws the mean of several runs and, thinner, each of them."""
    axes.plot(steps, values.mean(axis=0), label=label, linewidth=2.2, **style)
    if len(values) > 1:
        axes.plot(steps, values.T, linewidth=0.8, alpha=0.45, **style)


def draw_study(board: Scoreboard, metric: str, axis: str, path: str | pathlib.Path) -> None:
    """Draws a metric along a study's axis into a PNG, with a panel per group of languages (LcRL, figures 3 to 5).

    Points are means over a method's runs, bars their 95 % intervals. Lines connect numbers, not names. Trials without a
    point are not drawn.
    """
    points = study_points(board)
    numeric = not any(isinstance(point, str) for point in points)
    scale = 1 if metric in NOT_SHARES else 100  # percent
    several_models = len({trial.model for trial in board.trials}) > 1
    # Group -> method -> index of a point -> (value, half width of its interval or 0).
    series: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    for group in STUDIED_GROUPS:
        for trial in board.trials:
            score = board.score(trial.system, metric, ("", group))
            if trial.point is not None and score is not None:
                name = f"{trial.method}, {trial.model}" if several_models else trial.method
                line = series.setdefault(group, {}).setdefault(name, {})
                line[points.index(trial.point)] = scale * score.value, scale * float(np.nan_to_num(score.half))
    with matplotlib.rc_context(STYLE):
        figure, row = make_panels(len(series))
        for (group, lines), axes in zip(series.items(), row, strict=True):
            for number, (method, line) in enumerate(lines.items()):
                offset = 0.12 * (number - (len(lines) - 1) / 2)  # intervals at one name must not overlap
                x = [points[place] if numeric else place + offset for place in sorted(line)]
                values, errors = zip(*(line[place] for place in sorted(line)), strict=True)
                style = series_style(number, "marker") | (
                    series_style(number, "linestyle") if numeric else {"linestyle": "none"}
                )
                axes.errorbar(x, values, errors, capsize=3, label=method, linewidth=2, **style)
            unit = "" if metric in NOT_SHARES else " (%)"
            finish(axes, f"{METRIC_NAMES.get(metric, metric)}{unit}: {STUDIED_GROUPS[group]}", axis)
            labels = [textwrap.fill(point_name(point), NAME_WIDTH) for point in points]
            axes.set_xticks(points if numeric else range(len(points)), labels)
        add_legend(figure, row)
        save_figure(figure, path)


def draw_differences(board: Scoreboard, metric: str, marking: Marking, path: str | pathlib.Path) -> None:
    """Draws the differences from `marking.against` with 95 % intervals into a PNG, with a panel per part of the data.

    Systems are in the order of the tables. An interval that excludes 0 is coloured; its point is filled if the
    difference is significant after correction, see `part_differences`.
    """
    compared = part_differences(board, metric, marking)
    parts = list(dict.fromkeys(name for differences in compared.values() for name in differences))
    models = {model for model, _ in compared}
    names = [name if len(models) == 1 else f"{name}, {model}" for model, name in compared]
    columns = min(len(parts), DIFFERENCES_A_ROW)
    rows = -(-len(parts) // columns)
    height = 0.35 + rows * (0.6 + 0.24 * len(names))
    with matplotlib.rc_context({**STYLE, "axes.spines.left": False}):
        figure = matplotlib.figure.Figure(figsize=(1.9 + 2.1 * columns, height), dpi=150, layout="constrained")
        every = np.ravel(figure.subplots(rows, columns, sharex=True, sharey=True)).tolist()
        for unused in every[len(parts) :]:
            unused.set_visible(False)
        for number, (part, axes) in enumerate(zip(parts, every, strict=False)):
            for place, differences in enumerate(compared.values()):
                if part not in differences:
                    continue
                value, low, high, _ = (1 if metric in NOT_SHARES else 100) * np.array(differences[part].estimate)
                excluded = 0 if metric in UNRANKED else int(low > 0) - int(high < 0)
                axes.errorbar(
                    value,
                    place,
                    xerr=float(np.nan_to_num(high - value)),
                    fmt="o",
                    markersize=5.5,
                    markerfacecolor=SIGNS[excluded] if differences[part].tone(metric, marking) else "white",
                    markeredgewidth=1.8,
                    color=SIGNS[excluded],
                    linewidth=2,
                    zorder=2,
                )
            finish(axes, part, "")
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x", color=GRID, linewidth=0.8)
            axes.axvline(0, color=MUTED, linewidth=1, zorder=1)
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(axis="y", length=0, labelcolor=INK)
            axes.tick_params(axis="x", labelbottom=number + columns >= len(parts))
        every[0].set_ylim(len(names) - 0.5, -0.5)
        unit = METRIC_NAMES.get(metric, metric) + ("" if metric in NOT_SHARES else ", percentage points")
        figure.supxlabel(f"{unit}, minus {marking.against}", fontsize=10, color=MUTED)
        save_figure(figure, path)


def make_panels(
    count: int, *, height: float = 3.8, a_row: int | None = None
) -> tuple[matplotlib.figure.Figure, list[matplotlib.axes.Axes]]:
    """Returns a figure with `count` panels of equal size, by default in one row."""
    columns = min(count, a_row or count)
    rows = -(-count // columns)
    figure = matplotlib.figure.Figure(figsize=(4.3 * columns, height * rows), dpi=150, layout="constrained")
    every = np.ravel(figure.subplots(rows, columns)).tolist()
    for unused in every[count:]:
        unused.remove()
    return figure, every[:count]


def series_style(number: int, kind: str) -> dict[str, Any]:
    """Returns the colour and the "linestyle" or "marker" of a series, by its number in the figure."""
    others = KINDS[kind]  # the next one is used once the colours are used up
    return {"color": COLOURS[number % len(COLOURS)], kind: others[number // len(COLOURS) % len(others)]}


def finish(axes: matplotlib.axes.Axes, title: str, across: str, up: str = "", margin: float = 0.03) -> None:
    """Adds a panel's title, the labels of its axes and horizontal lines."""
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=margin)


def add_legend(figure: matplotlib.figure.Figure, row: Sequence[matplotlib.axes.Axes]) -> None:
    """Adds one legend below all panels if they show more than one label."""
    handles = {label: handle for axes in row for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(handles) > 1:
        placed = {"loc": "outside lower center", "ncols": min(4, len(handles)), "frameon": False, "labelcolor": INK}
        figure.legend(handles.values(), handles.keys(), **placed)
