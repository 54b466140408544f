"""Figures of a training run, drawn without a display."""

import pathlib
from collections.abc import Iterator, Mapping

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.evaluation.training_log import Curve

TOTAL = "reward/total"
SEARCHES = "episode/searches"
LOSSES = {"loss/supervised": "training", "validation/loss": "validation"}

INK, MUTED, GRID = "#1b1f24", "#6b7480", "#e6e8eb"
COLOURS = ("#0b5fa5", "#d9730d", "#2a8f5c", "#8e4ec6", "#c2255c", "#0c8599")
PENALTY_COLOUR, SEARCHES_COLOUR = "#c2255c", "#d9730d"

STYLE = {
    "font.size": 10,
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
    """Draws rewards, penalties and searches per episode, or the losses of fine-tuning, over the steps into a PNG.

    The thin line is every step's own value, the thick one a centred moving average over about a tenth of
    the run. Terms that are never positive (penalties) get a panel of their own, because of their scale.

    Raises:
      UserError: the log has neither rewards nor losses of fine-tuning.
    """
    losses = {label: name for name, label in LOSSES.items() if name in curves}
    if TOTAL not in curves and not losses:
        raise UserError(f"the training log has neither {TOTAL!r} nor {min(LOSSES)!r}: draw the log of a training run")
    panels = list(_panels(curves)) if TOTAL in curves else [_loss_panel(curves, losses)]
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(4.3 * len(panels), 3.6), dpi=150, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
        for axes, (name, lines) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            _draw(axes, name, lines)
        figure.savefig(path)


def smoothed(values: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """Centred moving average over about a tenth of the points (at least 3), shorter at both ends."""
    half = max(1, len(values) // 20)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _panels(curves: Mapping[str, Curve]) -> Iterator[tuple[str, dict[str, tuple[Curve, str]]]]:
    """(title, lines by label with their colour) of every panel there is something to show in."""
    terms = [name for name in curves if name.startswith("reward/") and name != TOTAL]
    penalties = [name for name in terms if (curves[name][1] <= 0).all() and (curves[name][1] < 0).any()]
    shown = [TOTAL, *(name for name in terms if name not in penalties)]
    yield "Reward", {_label(name): (curves[name], COLOURS[i % len(COLOURS)]) for i, name in enumerate(shown)}
    if penalties:
        colours = (PENALTY_COLOUR, *COLOURS)
        yield "Penalty", {_label(name): (curves[name], colours[i % len(colours)]) for i, name in enumerate(penalties)}
    if SEARCHES in curves:
        yield "Searches per episode", {"searches": (curves[SEARCHES], SEARCHES_COLOUR)}


def _loss_panel(curves: Mapping[str, Curve], losses: Mapping[str, str]) -> tuple[str, dict[str, tuple[Curve, str]]]:
    """The one panel of a fine-tuning run."""
    lines = zip(losses.items(), COLOURS, strict=False)
    return "Loss, nats per token", {label: (curves[name], colour) for (label, name), colour in lines}


def _label(name: str) -> str:
    return name.removeprefix("reward/").replace("_", " ")


def _draw(axes: matplotlib.axes.Axes, title: str, lines: Mapping[str, tuple[Curve, str]]) -> None:
    for number, (label, ((steps, values), colour)) in enumerate(lines.items()):
        first = number == 0
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.3 if first else 0.15)
        style = "-" if first else (0, (4, 2))
        axes.plot(steps, smoothed(values), color=colour, linewidth=2.4 if first else 1.6, linestyle=style, label=label)
    axes.set_title(title if len(lines) > 1 or title.lower().endswith("episode") else f"{title}: {next(iter(lines))}")
    axes.set_xlabel("step")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
    axes.margins(x=0.02)
    if len(lines) > 1:
        axes.legend(frameon=False, labelcolor=INK, loc="best", fontsize=9)
