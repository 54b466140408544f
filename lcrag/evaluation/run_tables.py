"""Tables and the report of single runs: before and after by place, policies at one place, one policy at every place."""

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from lcrag.evaluation.answered import Row, mean_over_seeds
from lcrag.evaluation.metrics import COUNTED, METRIC_NAMES, Place
from lcrag.evaluation.significance import NORMAL, Estimate
from lcrag.evaluation.tables import Cell, Table, Tone, to_markdown
from lcrag.evaluation.training_log import Curve
from lcrag.files import write_text

PLACE_NAMES = {"all": "all languages", "seen": "trained on", "zero_shot": "zero-shot"}
SECONDS = "seconds_per_question"
JUDGED = "In brackets: answers whose language could be judged."
INTERVAL = "±: half of the 95 % interval over questions."


def comparison_table(
    rows: Sequence[Row],
    title: str,
    sections: Sequence[Sequence[Place]],
    metrics: Sequence[str],
    *,
    before: str,
    after: str,
    references: Sequence[str] = (),
    differences: Mapping[tuple[Place, str], Estimate] | None = None,
) -> Table:
    """Returns a table of results before and after training, with a line per place (split and language).

    Every metric is shown as "before → after", the first one also with the difference ± half of its interval and for the
    `references`. Places without rows are omitted. Where a paired difference is missing, the errors of both sides are
    combined as if they were independent, which overstates the error of a difference on the same questions.
    """
    index = _index(rows)
    first, *others = metrics

    def sides(place: Place, metric: str) -> list[Row | None]:
        return [index.get((method, place, metric)) for method in (before, after)]

    def change(place: Place, metric: str) -> Cell:
        texts = ["–" if row is None else _number(row.value) + _judged(row) for row in sides(place, metric)]
        return Cell(" → ".join(texts) if any(sides(place, metric)) else "–")

    def line(place: Place) -> tuple[Cell, ...]:
        return (
            Cell(place_name(place)),
            change(place, first),
            _difference((differences or {}).get((place, first)), *sides(place, first)),
            *(Cell(value_text(index.get((method, place, first)))) for method in references),
            *(change(place, metric) for metric in others),
        )

    names = [METRIC_NAMES.get(metric, metric) for metric in metrics]
    known = [[place for place in section if any(sides(place, first))] for section in sections]
    return Table(
        title=title,
        header=("", names[0], "difference", *references, *names[1:]),
        sections=tuple(tuple(line(place) for place in section) for section in known if section),
        note=f"{before} → {after}. {INTERVAL} Marked where a difference's excludes 0.{judged_note(metrics)}",
    )


def _difference(paired: Estimate | None, before: Row | None, after: Row | None) -> Cell:
    if paired is not None:
        difference, half = paired.value, paired.half
    elif before is None or after is None:
        return Cell("–")
    else:
        difference = after.value - before.value
        half = NORMAL * math.hypot(before.standard_error, after.standard_error)
    if math.isnan(difference):
        return Cell("–")
    tone: Tone = "better" if difference > half else "worse" if difference < -half else "level"
    return Cell(f"{'-' if difference < 0 else '+'}{_number(abs(difference))}{_half(half)}", tone)


def method_table(
    rows: Sequence[Row], title: str, methods: Sequence[str], metrics: Sequence[str], place: Place
) -> Table:
    """Returns a table with a line per method: every metric with its 95 % interval, at one place."""
    index = _index(rows)
    lines = tuple(
        (Cell(method), *(Cell(value_text(index.get((method, place, metric)))) for metric in metrics))
        for method in methods
    )
    header = ("", *(METRIC_NAMES.get(metric, metric) for metric in metrics))
    counts = sorted({row.count for row in rows if (row.split, row.language) == place and row.metric == metrics[0]})
    asked = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
    note = f"{place_name(place)}; {asked} answers a line. {INTERVAL}{judged_note(metrics)}"
    return Table(title=title, header=header, sections=(lines,), note=note)


def _index(rows: Sequence[Row]) -> dict[tuple[str, Place, str], Row]:
    return {(row.method, (row.split, row.language), row.metric): row for row in rows}


def place_tables(rows: Iterable[Row], metrics: Sequence[str]) -> list[Table]:
    """Returns a table for every method and data set, averaged over inference runs.

    Its sections are the groups of languages, the languages, and the subsets.
    """
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in mean_over_seeds(rows):
        parts.setdefault((row.method, row.dataset), []).append(row)
    tables = []
    for (method, dataset), same in parts.items():
        index = {((row.split, row.language), row.metric): row for row in same}
        shown = [metric for metric in metrics if any(row.metric == metric for row in same)]
        whole = same[0].split.partition("/")[0]  # the names of all its subsets begin with it
        places = list(dict.fromkeys((row.split, row.language) for row in same if row.metric in shown))
        groups = [(whole, name) for name in PLACE_NAMES if (whole, name) in places]
        both = (whole, "zero_shot") in places and (whole, "seen") in places
        languages = [place for place in places if place[0] == whole and place[1] not in PLACE_NAMES]
        subsets = [place for place in places if place[0] != whole and place[1] == "all"]
        sections = []
        for section in (groups if both else groups[:1], languages if len(languages) > 1 else [], subsets):
            lines = []
            for place in section:
                values = [index.get((place, metric)) for metric in shown]
                count = max(row.count for row in values if row is not None)
                lines.append((Cell(place_name(place)), Cell(f"{count:,}"), *(Cell(value_text(row)) for row in values)))
            sections += [tuple(lines)] if lines else []
        note = INTERVAL + judged_note(shown)
        if seconds := index.get(((whole, "all"), SECONDS)):
            note += f" {seconds.value:.3f} seconds a question."
        for metric, said in (("failed", "failed and"), ("unscored", "had no judgement and")):
            if counted := index.get(((whole, "all"), metric)):
                number, means = (
                    round(counted.value * counted.count),
                    "no mean" if metric == "failed" else "no mean reward",
                )
                note += f" {number:,} of {counted.count:,} episodes {said} {'is' if number == 1 else 'are'} in {means}."
        header = ("", "answers", *(METRIC_NAMES[metric] for metric in shown))
        title = f"{method}: {dataset}, {whole}"
        tables.append(Table(title=title, header=header, sections=tuple(sections), note=note))
    return tables


def place_name(place: Place) -> str:
    """Returns the displayed name of a place: a language, a group of languages, or a subset of the split."""
    split, language = place
    subset = split.partition("/")[2].replace("_", " ")
    name = PLACE_NAMES.get(language, language)
    return name if not subset else subset if language == "all" else f"{subset}, {name}"


def value_text(row: Row | None) -> str:
    """Returns a value with the half width of its 95 % interval, ".385 ±.041"; a dash without a row or a value."""
    return "–" if row is None else f"{_number(row.value)}{_half(NORMAL * row.standard_error)}{_judged(row)}"


def _judged(row: Row) -> str:
    """Returns the number of scored answers in brackets, for metrics that score only some answers."""
    return f" ({row.count:,})" if row.metric in COUNTED else ""


def judged_note(metrics: Iterable[str]) -> str:
    """Returns a sentence on the numbers in brackets, for tables with metrics that score only some answers."""
    return "" if set(COUNTED).isdisjoint(metrics) else f" {JUDGED}"


def _number(value: float) -> str:
    """Formats a value with three digits: .385, 1.40; a dash for NaN."""
    if math.isnan(value):
        return "–"
    return f"{value:.3f}".removeprefix("0") if 0 <= value < 0.9995 else f"{value:.2f}"


def _half(half: float) -> str:
    return "" if math.isnan(half) else f" ±{_number(half)}"


def write_report(
    folder: str | pathlib.Path,
    *,
    title: str,
    summary: str,
    command: str,
    versions: Mapping[str, str],
    tables: Sequence[Table],
    reading: str,
    curves: Mapping[str, Curve] | None = None,
) -> pathlib.Path:
    """Writes `report.md`, and `training.png` if there are curves, into an existing folder; returns the report's path.

    Args:
      folder: The folder.
      title, summary: Title of the report, and one or two sentences on the run.
      command, versions: The command that reproduces the run; its commit, package versions and devices.
      tables, reading: Results, and what they show and do not show.
      curves: The training log to draw; None or empty: no figure.
    """
    folder = pathlib.Path(folder)
    figure = []
    if curves:
        from lcrag.evaluation.plots import draw_training_curves  # here, since Matplotlib takes a second

        draw_training_curves(curves, folder / "training.png", title)
        figure = [
            "![Reward, penalty and searches per episode over the training steps](training.png)",
            "Thin lines are single steps, thick ones a centred moving average over about a tenth of the run.",
        ]
    parts = [
        f"# {title}",
        summary,
        "## Result",
        *map(to_markdown, tables),
        *figure,
        "## How to read this",
        reading,
        "## What was run",
        f"```\n{command}\n```",
        "\n".join(f"- {name}: {value}" for name, value in versions.items()),
    ]
    path = folder / "report.md"
    write_text(path, "\n\n".join(part.strip("\n") for part in parts) + "\n")
    return path
