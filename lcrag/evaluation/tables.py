"""Tables of results and their formats, the training log, and the tables of a run."""

import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import rich.box
import rich.table
import rich.text
from jaxtyping import Float, Int

from lcrag.errors import UserError
from lcrag.evaluation.metrics import COUNTED, METRIC_NAMES, RARE, UNANSWERED, UNRANKED, Place, Row, mean_over_seeds
from lcrag.evaluation.significance import NORMAL, Estimate
from lcrag.files import read_metrics_file

Tone = Literal["", "better", "worse", "level"]
Rank = Literal["", "best", "second"]

_STYLES = {"": "", "better": "bold green", "worse": "bold red", "level": "dim", "best": "bold", "second": "underline"}
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "<": r"$<$",
    ">": r"$>$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    tone: Tone = ""  # how a difference is coloured
    rank: Rank = ""  # whether it is the best or the second best of its column
    mark: str = ""  # sign after the text that the table's note explains

    @property
    def bold(self) -> bool:
        """Whether the cell is bold in formats without colours."""
        return self.rank == "best" or self.tone in ("better", "worse")


def row_of(name: str, *values: str | int) -> tuple[Cell, ...]:
    """Returns a row of plain cells; integers have separators of thousands."""
    return (Cell(name), *(Cell(value if isinstance(value, str) else f"{value:,}") for value in values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results."""

    title: str
    header: tuple[str, ...]  # names of the columns; the first one names the rows
    sections: tuple[tuple[tuple[Cell, ...], ...], ...]  # groups of rows, separated by a line
    note: str = ""  # explanation below the table
    section_titles: tuple[str, ...] = ()  # empty: no titles
    spans: tuple[tuple[str, int], ...] = ()  # (heading, number of columns) from the second column on; LaTeX only

    def titled_sections(self) -> list[tuple[str, tuple[tuple[Cell, ...], ...]]]:
        """Returns (title, rows) of every section; the title is "" if sections have none."""
        titles = self.section_titles or ("",) * len(self.sections)
        return list(zip(titles, self.sections, strict=True))


def to_rich(table: Table) -> rich.table.Table:
    """Renders a table for the terminal."""
    out = rich.table.Table(
        title=rich.text.Text(table.title, "bold"),
        title_justify="left",
        caption=table.note,
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, name in enumerate(table.header):
        # Two-line headers keep the usual table within a hundred columns.
        out.add_column(name if number == 0 else name.replace(" ", "\n", 1), justify="right" if number else "left")
    for title, section in table.titled_sections():
        if title:
            out.add_row(rich.text.Text(title, "italic"))
        for line in section:
            out.add_row(
                *(rich.text.Text(cell.text, _STYLES[cell.rank or cell.tone]).append(cell.mark) for cell in line)
            )
        out.add_section()
    return out


def to_markdown(table: Table) -> str:
    """Renders a table as Markdown; coloured and best cells are bold."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(cell: Cell) -> str:
        text, mark = (part.replace("|", "\\|").replace("*", "\\*") for part in (cell.text, cell.mark))
        text = f"**{text}**" if cell.bold else text
        return (f"<u>{text}</u>" if cell.rank == "second" else text) + mark

    others = len(table.header) - 1
    lines = [f"**{table.title}**", "", line(table.header), line(["---", *["---:"] * others])]
    for title, section in table.titled_sections():
        if title:
            lines.append(line([f"_{title}_", *[""] * others]))
        lines += [line(map(shown, cells)) for cells in section]
    return "\n".join([*lines, "", table.note.replace("*", "\\*"), ""]) if table.note else "\n".join([*lines, ""])


def to_latex(table: Table) -> str:
    """Renders a table as a LaTeX environment `table` with the label `tab:<title in lower case>`."""

    def escaped(text: str) -> str:
        return "".join(_LATEX_ESCAPES.get(character, character) for character in text)

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    def shown(cell: Cell) -> str:
        text = escaped(cell.text)
        text = rf"\textbf{{{text}}}" if cell.bold else rf"\underline{{{text}}}" if cell.rank == "second" else text
        return text + (f"$^{{{cell.mark}}}$" if cell.mark else "")

    columns = len(table.header)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.title)}.}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', table.title.lower()).strip('-')}}}",
        rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}",
        r"\toprule",
    ]
    if table.spans:
        headings, rules, last = [""], [], 1
        for name, width in table.spans:
            headings.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(name)}}}")
            rules += [rf"\cmidrule(lr){{{last + 1}-{last + width}}}"] if name else []
            last += width
        lines += [line(headings), " ".join(rules)]
    lines.append(line(map(escaped, table.header)))
    for title, section in table.titled_sections():
        lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\textit{{{escaped(title)}}}}} \\")
        lines += [line(map(shown, cells)) for cells in section]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.note:
        lines.append(rf"\par\smallskip{{\footnotesize {escaped(table.note)}}}")
    return "\n".join([*lines, r"\end{table}", ""])


# --- Training log ---

Curve = tuple[Int[np.ndarray, " _points"], Float[np.ndarray, " _points"]]
# Parts that add up to a step, their descriptions, and a metric of the share of computed positions that were filled.
PARTS = (
    ("append", "devices: appending prompts and observations", "append/filled"),
    ("decode", "devices: sampling", "slots/occupancy"),
    ("update", "devices: learning", "packing/filled"),
    ("retrieval_wait", "waiting for searches and other models", None),
    ("programs", "host: programs, tokenising, batches", None),
    ("rewards", "host: rewards", None),
    ("rest", "host: checkpoints, logs, new parameters for the sampler", None),
)
REWARD, TOTAL = "reward/", "reward/total"


def read_training_log(path: str | pathlib.Path) -> dict[str, Curve]:
    """Reads the curve of every logged number: name -> (steps, values), steps increasing.

    A resumed run logs the steps after its checkpoint again; the later line counts. Null, a number that was not finite,
    is left out.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no training log {path}: give the output folder of a training run")
    curves: dict[str, dict[int, float]] = {}
    for entry in read_metrics_file(path):
        for name, value in entry.items():
            curve = curves.setdefault(name, {})
            if value is not None:
                curve[entry["step"]] = float(value)
    curves.pop("step", None)
    points = {name: sorted(curves[name].items()) for name in sorted(curves)}
    return {
        name: (np.array([n for n, _ in curve], np.int64), np.array([v for _, v in curve]))
        for name, curve in points.items()
    }


def step_size(log: dict[str, Curve]) -> str:
    """Returns how many prompts and episodes a step of a run has, as a clause; empty if its log does not say."""
    if not {"step/prompts", "step/episodes"} <= log.keys():
        return ""
    prompts, episodes = (np.mean(log[name][1]) for name in ("step/prompts", "step/episodes"))
    return f"{episodes:g} episodes of {prompts:g} prompts a step"


PHASES = ("rollout", "rewards", "update")
_RATE = "tokens_per_second/sampled"


def phase_table(
    logs: Mapping[str, Sequence[Mapping[str, Curve]]], title: str = "Time of a training step"
) -> Table | None:
    """Tabulates each phase's seconds, share and milliseconds per token, a line per method; None without rollouts.

    `logs` has for each method the training log of each of its runs, over which a line is the mean.
    """
    lines = []
    for method, method_logs in logs.items():
        runs = []  # the numbers of each run, means over its steps
        for log in method_logs:
            names = [*(f"seconds/{phase}" for phase in PHASES), _RATE]
            if any(name not in log or not len(log[name][0]) for name in names):
                continue  # SFT has no rollouts
            seconds = [float(log[f"seconds/{phase}"][1].mean()) for phase in PHASES]
            steps = np.intersect1d(log["seconds/rollout"][0], log[_RATE][0])
            rollout, rate = (y[np.isin(x, steps)] for x, y in (log["seconds/rollout"], log[_RATE]))
            tokens, step = float((rollout * rate).mean()), sum(seconds)
            if tokens > 0 and step > 0:
                of_phases = ((duration, 100 * duration / step, 1000 * duration / tokens) for duration in seconds)
                runs.append([step, *itertools.chain.from_iterable(of_phases)])
        if runs:
            lines.append(row_of(method, *(f"{number:.2f}" for number in np.mean(runs, axis=0))))
    if not lines:
        return None
    columns = [f"{phase} {unit}" for phase in PHASES for unit in ("s", "%", "ms/token")]
    note = (
        "Means over the steps; shares are of the three phases together. A rollout includes its searches; a token is one"
        " that was sampled in the step."
    )
    return Table(title=title, header=("", "step s", *columns), sections=(tuple(lines),), note=note)


def wall_time_table(log: Mapping[str, Curve]) -> Table | None:
    """Tabulates the parts of a step, means over the steps after the first, which compiles; None without them."""
    names = [f"seconds/{part}" for part, _, _ in PARTS]
    if any(name not in log or not len(log[name][1]) for name in (*names, "seconds/step")):
        return None

    def mean(name: str) -> float:
        values = np.asarray(log[name][1], float)
        return float(values[1:].mean() if len(values) > 1 else values.mean())

    step = mean("seconds/step")
    rows = []
    for name, (_, what, filled) in zip(names, PARTS, strict=True):
        padding = f"{1 - mean(filled):.0%}" if filled and filled in log else ""
        seconds = mean(name)
        rows.append(row_of(what, f"{seconds:.3f}", f"{seconds / step:.0%}", padding))
    total = row_of("step", f"{step:.3f}", "100%", "")
    note = (
        "Wasted computation is padding of rows and idle slots. If sampling runs ahead of learning, their common time is"
        " subtracted from the last part."
    )
    header = ("", "seconds", "of the step", "computed in vain")
    return Table(title="Wall time of a training step", header=header, sections=(tuple(rows), (total,)), note=note)


def rewards_table(logs: Mapping[str, Sequence[Mapping[str, Curve]]]) -> Table | None:
    """Tabulates every term of the reward at the beginning and the end of training; None without any.

    A line is the mean over the runs of a method.
    """
    terms = {name for runs in logs.values() for log in runs for name in log if name.startswith(REWARD)}
    names = sorted(terms, key=lambda name: (name != TOTAL, name))

    def quarters(runs: Sequence[Mapping[str, Curve]], name: str) -> str:
        values = [np.asarray(log[name][1], float) for log in runs if name in log and len(log[name][1])]
        if not values:
            return "–"
        first = np.mean([curve[: -(-len(curve) // 4)].mean() for curve in values])
        last = np.mean([curve[-len(curve) // 4 :].mean() for curve in values])
        return f"{first:.3f} → {last:.3f}"

    lines = [
        row_of(method, *(quarters(runs, name) for name in names))
        for method, runs in logs.items()
        if any(terms & log.keys() for log in runs)
    ]
    if not lines:
        return None
    header = ("", *(name.removeprefix(REWARD).replace("_", " ") for name in names))
    note = (
        "Means over the first → the last quarter of the steps, of what was sampled on training questions. The total is"
        " what each method was rewarded with; terms may be logged without being rewarded."
    )
    return Table(title="Rewards in training", header=header, sections=(tuple(lines),), note=note)


# --- Results of a run ---

PLACE_NAMES = {"all": "all languages", "seen": "training languages", "zero_shot": "zero-shot"}
LINES = 20  # of a summary
FEW_ANSWERED = 0.8  # a summary says why less are answered
INTERVAL = "±: half of the 95 % interval over questions."


def comparison_table(
    rows: Sequence[Row],
    title: str,
    sections: Sequence[Sequence[Place]],
    metrics: Sequence[str],
    *,
    before: str,
    after: str,
    differences: Mapping[tuple[Place, str], Estimate],
    references: Sequence[str] = (),
) -> Table:
    """Returns a table of results before and after training, with a line per place (split and language).

    Every metric is shown as "before → after", the first one also with the difference ± half of its interval and for the
    `references`. Places without rows are omitted.

    Args:
      sections: The places of each section.
      before, after, references: Names of methods in the rows.
      differences: Result of `compare`.
    """
    index = {(row.method, (row.split, row.language), row.metric): row for row in rows}
    first, *others = metrics

    def sides(place: Place, metric: str) -> list[Row | None]:
        return [index.get((method, place, metric)) for method in (before, after)]

    def change(place: Place, metric: str) -> Cell:
        texts = ["–" if row is None else value_text(row, interval=False) for row in sides(place, metric)]
        return Cell(" → ".join(texts) if any(sides(place, metric)) else "–")

    def line(place: Place) -> tuple[Cell, ...]:
        return (
            Cell(place_name(place)),
            change(place, first),
            _difference(differences.get((place, first)), first),
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


def _difference(paired: Estimate | None, metric: str) -> Cell:
    """The cell of a difference, coloured where its interval excludes 0."""
    if paired is None:
        return Cell("–")
    value, half = paired.value, paired.half
    tone: Tone = "better" if value > half else "worse" if value < -half else "level"
    if metric in UNRANKED:
        tone = ""
    return Cell(f"{'-' if value < 0 else '+'}{_number(abs(value))}{_half(half)}", tone)


def summary_table(
    rows: Iterable[Row],
    title: str,
    metrics: Sequence[str],
    *,
    differences: Mapping[tuple[str, str], Mapping[tuple[Place, str], Estimate]] | None = None,
    brief: bool = False,
) -> Table:
    """Returns results over all languages, a line per metric and a column per policy, averaged over inference runs.

    Args:
      rows: Rows of methods that are called "<policy>, <decoding>"; a section is of a data set and a decoding.
      differences: (data set, decoding) -> `compare` of the first two policies, shown after them.
      brief: Whether the table is for one screen of 80 columns: of three policies and the first metrics.
    """
    parts: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in mean_over_seeds(rows):
        if row.language == "all" and "/" not in row.split:
            policy, _, decoding = row.method.rpartition(", ")
            parts.setdefault((row.dataset, decoding), {}).setdefault(policy, {})[row.metric] = row
    policies = list(dict.fromkeys(policy for section in parts.values() for policy in section))[: 3 if brief else None]
    metrics = metrics[: max(1, LINES // max(1, len(parts))) if brief else None]
    sections: dict[str, list[tuple[Cell, ...]]] = {}
    note = INTERVAL
    for key, section in parts.items():
        name = ", ".join(key) if len({dataset for dataset, _ in parts}) > 1 else key[1]
        sections[name] = []
        for metric in metrics:
            values = [section.get(policy, {}).get(metric) for policy in policies]
            cells = [Cell(value_text(row).partition(" (")[0]) for row in values]
            if differences:  # but not of metrics that score other answers before than after
                place = next(row.split for row in section[policies[0]].values()), "all"
                paired = None if metric in COUNTED else differences[key].get((place, metric))
                cells.insert(2, _difference(paired, metric))
            if any(row and not math.isnan(row.value) and (row.value or metric not in RARE) for row in values):
                sections[name].append((Cell(METRIC_NAMES[metric]), *cells))
        for policy in policies:
            answered = section.get(policy, {}).get("answered")
            if (
                answered
                and answered.value < (FEW_ANSWERED if brief else 1)
                and (said := unanswered_note(section[policy]))
            ):
                note += f" {policy}, {name}: {said}"
    header = ["", *policies]
    header[3:3] = ["difference"] if differences else []
    lines = tuple(map(tuple, sections.values()))
    return Table(title=title, header=tuple(header), sections=lines, section_titles=tuple(sections), note=note)


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
        shown = [metric for metric in metrics if metric != "answered" and any(row.metric == metric for row in same)]
        whole = same[0].split.partition("/")[0]  # the names of all its subsets begin with it
        places = list(dict.fromkeys((row.split, row.language) for row in same if row.metric in shown))
        groups = [(whole, name) for name in PLACE_NAMES if (whole, name) in places]
        languages = [place for place in places if place[0] == whole and place[1] not in PLACE_NAMES]
        subsets = [place for place in places if place[0] != whole and place[1] == "all"]
        sections = []
        for section in (groups if len(groups) == 3 else groups[:1], languages if len(languages) > 1 else [], subsets):
            lines = []
            for place in section:
                values = [index.get((place, metric)) for metric in shown]
                answered = index.get((place, "answered"))
                count = max(row.count for row in values if row is not None)
                asked = f"{count:,}" if answered is None else value_text(answered)
                lines.append(row_of(place_name(place), asked, *map(value_text, values)))
            sections += [tuple(lines)] if lines else []
        reasons = unanswered_note({metric: row for (place, metric), row in index.items() if place == (whole, "all")})
        note = INTERVAL + judged_note(shown) + (reasons and f" {reasons}")
        if seconds := index.get(((whole, "all"), "seconds_per_question")):
            note += f" {seconds.value:.3f} seconds a question."
        for metric, said in (
            ("failed", "failed and {} in no mean"),
            ("unscored", "had no judgement and {} in no mean reward"),
        ):
            if (counted := index.get(((whole, "all"), metric))) and counted.value:
                number = round(counted.value * counted.count)
                note += f" {number:,} of {counted.count:,} episodes {said.format('is' if number == 1 else 'are')}."
        known = any(row.metric == "answered" for row in same)
        header = ("", "answered" if known else "questions", *(METRIC_NAMES[metric] for metric in shown))
        title = f"{method}: {dataset}, {whole}"
        tables.append(Table(title=title, header=header, sections=tuple(sections), note=note))
    return tables


def place_name(place: Place) -> str:
    """Returns the displayed name of a place: a language, a group of languages, or a subset of the split."""
    split, language = place
    subset = split.partition("/")[2].replace("_", " ")
    name = PLACE_NAMES.get(language, language)
    return name if not subset else subset if language == "all" else f"{subset}, {name}"


def value_text(row: Row | None, interval: bool = True) -> str:
    """Returns a value, half the width of its 95 % interval, and for `COUNTED` metrics the number of scored answers.

    Of `answered` it returns "28 of 30".
    """
    if row is None:
        return "–"
    if row.metric == "answered":
        return f"{round(row.value * row.count):,} of {row.count:,}"
    half = _half(NORMAL * row.standard_error) if interval else ""
    return f"{_number(row.value)}{half}{f' ({row.count:,})' if row.metric in COUNTED else ''}"


def unanswered_note(rows: Mapping[str, Row]) -> str:
    """Returns a sentence on why episodes gave no answer, from the rows of a place by metric; empty if all did."""
    reasons = {said: rows.get(f"unanswered/{name}") for name, said in UNANSWERED.items()}
    said = ", ".join(f"{said} ({round(row.value * row.count):,})" for said, row in reasons.items() if row and row.value)
    return said and f"Not answered: {said}."


def judged_note(metrics: Iterable[str]) -> str:
    """Returns a sentence on the numbers in brackets, for tables with metrics that score only some answers."""
    return "" if set(COUNTED).isdisjoint(metrics) else " In brackets: answers whose language could be judged."


def _number(value: float) -> str:
    """Formats a value with three digits: 0.385, 1.40; a dash for NaN."""
    if math.isnan(value):
        return "–"
    return f"{value:.3f}" if 0 <= value < 0.9995 else f"{value:.2f}"


def _half(half: float) -> str:
    return "" if math.isnan(half) else f" ±{_number(half)}"
