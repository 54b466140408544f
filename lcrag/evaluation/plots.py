"""Figures: training curves, results along the axis of a study, differences."""

import contextlib
import itertools
import pathlib
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.evaluation.metrics import METRIC_NAMES, NOT_SHARES
from lcrag.evaluation.scoreboard import Marking, Part, Scoreboard, part_differences, point_name, study_points
from lcrag.evaluation.tables import TOTAL, Curve
from lcrag.files import replacing

SEARCHES = "episode/searches"
# Shown in place of SEARCHES if questions say whether the collection of their language holds what they need.
SEARCHES_BY_HOLDING = {f"{SEARCHES}_native_holds": "native holds", f"{SEARCHES}_native_missing": "native lacks"}
LOSSES = {"loss/supervised": "training", "validation/loss": "validation"}
# LcRL's figure 6, and the searches.
TRAINING_PANELS = {
    TOTAL: "Training reward",
    "episode/policy_tokens": "Response length (tokens)",
    SEARCHES: "Searches per episode",
    **{name: f"Searches, {part}" for name, part in SEARCHES_BY_HOLDING.items()},
}
STUDIED_GROUPS = {"seen": "training languages", "zero_shot": "zero-shot"}

INK, MUTED, GRID = "#1b1f24", "#6b7480", "#e6e8eb"
# For colour-blind readers (Okabe and Ito 2008, without yellow; wine of Paul Tol's), and grey for what was not trained:
# blue, vermilion, green, purple, orange, sky, wine, black, grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#222222", "#8a94a0")
PENALTY_COLOUR, SEARCHES_COLOUR = COLOURS[6], COLOURS[1]
UNSHOWN = "#c3c8ce"  # an interval that includes 0
SECOND = len(COLOURS)  # added: the same colour with the next marker or line
# The numbers of methods' styles, the same in every figure. Methods of one paper differ; its own one is blue.
METHODS = {
    **dict.fromkeys(("LcRL", "R-Search", "GlobalRAG", "RAG-R1", "Gated", "Translation and search"), 0),
    **dict.fromkeys(("mSearch-R1", "Ungated"), 1),
    **dict.fromkeys(("Search-R1", "Free tool"), 2),
    **dict.fromkeys(("RAG", "RAG, native", "No tool"), 3),
    **dict.fromkeys(("RAG-R1 w/o selection", "OTC"), 5),
    **dict.fromkeys(("LcRL w/o Lc rollout", "R-Search, evidence not rewarded", "GlobalRAG, constant weights"), 6),
    **dict.fromkeys(("RAG-R1, single query", "Flat cost", "Search alone"), 6),
    **dict.fromkeys(("LcRL w/o multi-language rollout", "R-Search, answer rewarded only"), 7),
    **dict.fromkeys(("GlobalRAG, outcome only", "RAG-R1 w/o SFT", "Gated at two"), 7),
    **dict.fromkeys(("before", "RAG-R1 w/o RL"), 8),
    "R-Search w/o evidence": 1 + SECOND,
    "LcRL w/o Lc reward": 4 + SECOND,
    "LcRL, two samples a prompt": 5 + SECOND,
    "LcRL w/o c3Recall": 7 + SECOND,
}
# Of other names that end so.
ENDINGS = {"before training": 8, " from long SFT": 4, "long SFT": 8 + SECOND, " with PPO": 5}
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
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}


def draw_training_curves(curves: Mapping[str, Curve], path: str | pathlib.Path, title: str) -> str:
    """Draws the rewards, penalties and searches of a training run, or the losses of fine-tuning, into a PNG.

    The thin line shows every step's value, the thick one that `smoothed`. Terms that are never positive (penalties)
    have a separate panel, because of their scale. Returns a sentence on what is shown, for readers without the figure.
    """
    panels: list[tuple[str, list[str], Sequence[str]]]  # (title, names of curves, colours)
    if TOTAL in curves:
        terms = [name for name in curves if name.startswith("reward/") and name != TOTAL]
        # By what the native collection holds, if that is known.
        searches = [name for name in SEARCHES_BY_HOLDING if name in curves] or [SEARCHES] * (SEARCHES in curves)
        penalties = [name for name in terms if (curves[name][1] <= 0).all() and (curves[name][1] < 0).any()]
        panels = [
            ("Reward", [TOTAL, *(name for name in terms if name not in penalties)], COLOURS),
            ("Penalty", penalties, (PENALTY_COLOUR, *COLOURS)),
            ("Searches per episode", searches, (SEARCHES_COLOUR, COLOURS[0])),
        ]
    else:
        panels = [("Loss, nats per token", [name for name in LOSSES if name in curves], COLOURS)]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        raise UserError(f"the training log has neither {TOTAL!r} nor {min(LOSSES)!r}: draw the log of a training run")
    with drawing(path, len(panels), (title,), height=3.6, legend=False) as row:
        for axes, (name, lines, colours) in zip(row, panels, strict=True):
            named_otherwise = LOSSES | SEARCHES_BY_HOLDING
            labels = [named_otherwise.get(line, line.partition("/")[2].replace("_", " ")) for line in lines]
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
    return f"{', '.join(name.lower() for name, *_ in panels).capitalize()}: curves over the training steps"


def smoothed(values: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """Returns the centred moving average over about a tenth of the points (at least 3), shorter at both ends.

    Fewer than ten points stay as they are.
    """
    if len(values) < 10:
        return values
    window = np.ones(1 + 2 * max(1, len(values) // 20))
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def draw_method_curves(logs: Mapping[str, Sequence[Mapping[str, Curve]]], step: str, path: str | pathlib.Path) -> None:
    """Draws reward, response length and searches of several methods over the steps into a PNG (LcRL, figure 6).

    `step` is the size of a step, for the title.
    """
    logged = {name for runs in logs.values() for log in runs for name in log}
    splits = all(set(SEARCHES_BY_HOLDING) <= log.keys() for runs in logs.values() for log in runs)
    without = {SEARCHES} if splits else set(SEARCHES_BY_HOLDING)
    draw_curves(logs, step, path, {name: TRAINING_PANELS[name] for name in TRAINING_PANELS if name in logged - without})


def draw_curves(
    logs: Mapping[str, Sequence[Mapping[str, Curve]]],
    step: str,
    path: str | pathlib.Path,
    panels: Mapping[str, str],
    *,
    up: str = "",
    percent: bool = False,
    a_row: int | None = None,
) -> None:
    """Draws logged numbers of several methods over the steps into a PNG, one panel for each.

    A line is the mean over a method's runs, over the steps that all of them have reached; thin ones are the runs. All
    are smoothed over about a tenth of the steps.

    Args:
      logs: Method -> the training log of each of its runs.
      step: The size of a step, for the title.
      panels: Name of a number -> title of its panel, `a_row` panels in a row (None: all).
      up: What the vertical axes are called.
      percent: Whether the numbers are shares, shown in percent.
    """
    common_seeds, labels = name_with_seeds({method: len(runs) for method, runs in logs.items()})
    styles, scale = method_styles(logs, "linestyle"), 100 if percent else 1
    with drawing(path, len(panels), ("Training", common_seeds, step), a_row=a_row) as row:
        for (name, title), axes in zip(panels.items(), row, strict=True):
            for method, runs in logs.items():
                curves = [log[name] for log in runs if name in log and len(log[name][0])]
                if not curves:
                    continue
                steps = np.unique(np.concatenate([logged for logged, _ in curves]))
                first, last = max(logged[0] for logged, _ in curves), min(logged[-1] for logged, _ in curves)
                steps = steps[(steps >= first) & (steps <= last)]
                values = [scale * np.interp(steps, logged, smoothed(numbers)) for logged, numbers in curves]
                style = styles[method]
                axes.plot(steps, np.mean(values, axis=0), label=labels[method], linewidth=2.2, **style)
                if len(values) > 1:
                    axes.plot(steps, np.transpose(values), linewidth=0.8, alpha=0.45, **style)
            finish(axes, title, "step", up)
            if percent:
                axes.set_ylim(-3, 103)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))


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
    runs: dict[str, set[int]] = {}
    for group in STUDIED_GROUPS:
        for trial in board.trials:
            score = board.score(trial.system, metric, ("", group))
            if trial.point is not None and score is not None:
                name = f"{trial.method}, {trial.model}" if several_models else trial.method
                line = series.setdefault(group, {}).setdefault(name, {})
                runs.setdefault(name, set()).add(board.seeds(trial.system))
                line[points.index(trial.point)] = scale * score.value, scale * float(np.nan_to_num(score.half))
    every = {count for counts in runs.values() for count in counts}
    seeds = f"{count_of(min(every))} a point" if len(every) == 1 else f"{min(every)} to {max(every)} seeds a point"
    styles, title = method_styles(runs, "marker"), METRIC_NAMES.get(metric, metric)
    with drawing(path, len(series), (title, board.dataset, board.decoding, seeds)) as row:
        for (group, lines), axes in zip(series.items(), row, strict=True):
            for number, (method, line) in enumerate(lines.items()):
                offset = 0.12 * (number - (len(lines) - 1) / 2)  # intervals at one name must not overlap
                x = [points[place] if numeric else place + offset for place in sorted(line)]
                values, errors = zip(*(line[place] for place in sorted(line)), strict=True)
                style = styles[method] | {"linestyle": "-" if numeric else "none"}
                axes.errorbar(x, values, errors, capsize=3, label=method, linewidth=2, **style)
            up = METRIC_NAMES.get(metric, metric) + ("" if metric in NOT_SHARES else " (%)")
            finish(axes, f"{STUDIED_GROUPS[group]}, n = {board.size(('', group)):,}", axis, up)
            labels = [textwrap.fill(point_name(point), NAME_WIDTH) for point in points]
            axes.set_xticks(points if numeric else range(len(points)), labels)


def draw_differences(
    board: Scoreboard,
    metric: str,
    marking: Marking,
    path: str | pathlib.Path,
    shown: Mapping[str, Part] | None = None,
) -> None:
    """Draws the differences from `marking.against` with 95 % intervals into a PNG, with a panel per part of the data.

    Systems are in the order of the tables. An interval that excludes 0 has the method's colour; its point is filled if
    the difference is significant after correction, see `part_differences`, which also says what is shown by default.
    """
    compared, rivals = part_differences(board, metric, marking, shown), board.rivals(marking)
    drawn = {name for differences in compared.values() for name in differences}
    parts = {name: part for name, part in (shown or board.parts).items() if name in drawn}
    models = {model for model, _ in compared}
    plain = [name if len(models) == 1 else f"{name}, {model}" for model, name in compared]
    styles = [method_styles(plain, "marker")[name] for name in plain]
    all_seeds = {system: board.seeds(system) for system in {*compared, *rivals.values()}}
    common_seeds, _ = name_with_seeds(all_seeds)
    names = []
    for system, name in zip(compared, plain, strict=True):
        rival = rivals[system][1]
        other = f"\nminus {rival}" if rival.partition(" [")[0] != marking.against else ""
        names.append(f"{name}{other}" if common_seeds else f"{name} ({board.seeds(system)}){other}")
    columns = min(len(parts), DIFFERENCES_A_ROW)
    rows = -(-len(parts) // columns)
    height = 0.6 / rows + 0.75 + 0.24 * (len(names) + sum("\n" in name for name in names))
    reference = f"{marking.against}: {count_of(max(all_seeds[rival] for rival in rivals.values()))}"
    seeds = common_seeds or f"{reference}, others in brackets"
    title = board.dataset, board.decoding, seeds, "paired by seed" if board.paired_seeds else ""
    width, style = 1.9 / columns + 2.1, {"axes.spines.left": False}
    with drawing(
        path, len(parts), title, width=width, height=height, a_row=columns, style=style, sharex=True, sharey=True
    ) as every:
        for number, ((part, key), axes) in enumerate(zip(parts.items(), every, strict=False)):
            for place, differences in enumerate(compared.values()):
                if part not in differences:
                    continue
                value, low, high, _ = (1 if metric in NOT_SHARES else 100) * np.array(differences[part])
                colour = styles[place]["color"] if low > 0 or high < 0 else UNSHOWN
                axes.errorbar(
                    value,
                    place,
                    xerr=float(np.nan_to_num(high - value)),
                    linestyle="none",
                    marker=styles[place]["marker"],
                    markersize=5.5,
                    markerfacecolor=colour if marking.tone(differences[part], metric) else "white",
                    markeredgewidth=1.8,
                    color=colour,
                    linewidth=2,
                    zorder=2,
                )
            finish(axes, f"{part}\nn = {board.size(key):,}", "")
            axes.title.set_fontsize(10)
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x", color=GRID, linewidth=0.8)
            axes.axvline(0, color=MUTED, linewidth=1, zorder=1)
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(axis="y", length=0, labelcolor=INK)
            axes.tick_params(axis="x", labelbottom=number + columns >= len(parts))
        every[0].set_ylim(len(names) - 0.5, -0.5)
        unit = METRIC_NAMES.get(metric, metric) + ("" if metric in NOT_SHARES else ", percentage points")
        every[0].figure.supxlabel(f"{unit}, minus {marking.against}", fontsize=10, color=MUTED)


@contextlib.contextmanager
def drawing(
    path: str | pathlib.Path,
    count: int,
    title: Sequence[str] = (),
    *,
    width: float = 4.3,
    height: float = 3.8,
    a_row: int | None = None,
    legend: bool = True,
    style: Mapping[str, Any] | None = None,
    **shared: Any,
) -> Iterator[list[matplotlib.axes.Axes]]:
    """Yields `count` panels to draw in, `a_row` of them in a row (None: all), and then replaces a PNG by the figure.

    Args:
      title: Parts of the title of the figure; empty ones are left out.
      width, height: Of a panel, in inches.
      legend: Whether one legend below all panels has their labels, if there are several.
      style: What differs from `STYLE`.
      **shared: Of `Figure.subplots`, such as `sharex`.
    """
    columns = min(count, a_row or count)
    rows = -(-count // columns)
    with matplotlib.rc_context({**STYLE, **(style or {})}):
        figure = matplotlib.figure.Figure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
        panels = np.ravel(figure.subplots(rows, columns, **shared)).tolist()
        for unused in panels[count:]:
            unused.remove()
        figure.suptitle(", ".join(filter(None, title)), x=0.01, ha="left", color=INK)
        yield panels[:count]
        labelled = [zip(*axes.get_legend_handles_labels()[::-1], strict=True) for axes in panels[:count]]
        handles = dict(itertools.chain.from_iterable(labelled)) if legend else {}
        if len(handles) > 1:
            fitting = max(1, int(figure.get_figwidth() / (0.5 + 0.075 * max(map(len, handles)))))  # by the inches
            placed = {"loc": "outside lower center", "ncols": min(fitting, len(handles))}
            figure.legend(handles.values(), handles.keys(), frameon=False, labelcolor=INK, **placed)
        with replacing(pathlib.Path(path)) as temporary:
            figure.savefig(temporary, format="png")


def method_styles(names: Iterable[str], kind: str) -> dict[str, dict[str, Any]]:
    """Returns each method's colour and "linestyle" or "marker": of METHODS and ENDINGS, or else drawn from its name.

    A style that another method of the figure has is replaced by the next one of its colour, then of the next colours.
    """
    known = {}  # name -> number of its style
    for name in names:
        ending = next((number for ending, number in ENDINGS.items() if name.endswith(ending)), None)
        if (number := METHODS.get(name, ending)) is not None:
            known[name] = number
    kinds, taken = KINDS[kind], dict[str, int]()
    for name in (*known, *(name for name in names if name not in known)):
        first = known.get(name, zlib.crc32(name.encode()) % len(COLOURS))
        wanted = [
            (first + colour + SECOND * turn) % (len(COLOURS) * len(kinds))
            for colour, turn in itertools.product(range(len(COLOURS)), range(len(kinds)))
        ]
        taken[name] = next((number for number in wanted if number not in taken.values()), first)
    return {
        name: {"color": COLOURS[taken[name] % len(COLOURS)], kind: kinds[taken[name] // len(COLOURS)]} for name in names
    }


def name_with_seeds(seeds: Mapping[Any, int]) -> tuple[str, dict[Any, str]]:
    """Returns the number of seeds in words if all have the same, and else names with their seeds in brackets."""
    if len(set(seeds.values())) == 1:
        return count_of(next(iter(seeds.values()))), {name: str(name) for name in seeds}
    return "", {name: f"{name} ({count_of(count)})" for name, count in seeds.items()}


def count_of(seeds: int) -> str:
    return f"{seeds} seed{'s' if seeds > 1 else ''}"


def finish(axes: matplotlib.axes.Axes, title: str, across: str, up: str = "", margin: float = 0.03) -> None:
    """Adds a panel's title, the labels of its axes and horizontal lines."""
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=margin)
