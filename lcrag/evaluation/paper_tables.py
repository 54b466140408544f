"""Tables of a paper: systems by data set and metric, language, or subset, with intervals, ranks and marks.

As in LcRL, numbers are percentages, averages over languages are means of the languages' means, and the overall table
covers the languages trained on (the published table 1 is the mean over the seen languages of tables 5 and 6). The
number after ± is half the width of the 95 % interval, see `Scoreboard`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from lcrag.evaluation.metrics import COUNTED, METRIC_NAMES
from lcrag.evaluation.run_tables import judged_note
from lcrag.evaluation.scoreboard import Part, Scoreboard, System, SystemScore, point_name
from lcrag.evaluation.significance import Estimate, holm
from lcrag.evaluation.tables import Cell, Rank, Table, Tone

# Neither percentages nor better when higher.
NOT_SHARES = ("searches", "retrieval_rounds", "seconds_per_question", "sampled_tokens", "total_tokens", "tool_calls")
UNRANKED = (*NOT_SHARES, "failures_without_passage", "tool_rate")
INTERVAL = "±: half of the 95 % interval over questions and training runs."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marking:
    """Significant differences to mark."""

    against: str | None = None  # the method that all others are tested against; None: no marks
    threshold: float = 0.01  # largest marked p-value, exclusive

    @property
    def note(self) -> str:
        return "" if self.against is None else f" * p < {self.threshold:g} against {self.against}."


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: a metric on a part of a scoreboard's data."""

    board: Scoreboard
    metric: str
    part: Part
    name: str


def overall_table(boards: Sequence[Scoreboard], title: str, metrics: Sequence[str], marking: Marking) -> Table:
    """Returns a table of all metrics by data set, over the languages trained on (LcRL, tables 1 and 2)."""
    columns = [
        Column(board, metric, ("", "seen"), METRIC_NAMES.get(metric, metric)) for board in boards for metric in metrics
    ]
    spans = tuple((board.dataset, len(metrics)) for board in boards)
    return _table(columns, title, marking, "Means over the languages trained on.", spans)


def language_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table:
    """Returns a table by language, with means over seen and zero-shot languages (LcRL, tables 5 and 6)."""
    seen, unseen = board.languages
    spans, columns = [], []
    for codes, group, name in ((seen, "seen", "trained on"), (unseen, "zero_shot", "zero-shot")):
        if codes:
            spans.append((name, len(codes) + 1))
            columns += [Column(board, metric, ("", code), code.replace("_", "-")) for code in (*codes, group)]
    columns.append(Column(board, metric, ("", "all"), "all"))
    about = f"Zero-shot: {', '.join(unseen)}." if unseen else "No language is zero-shot."
    if len({trial.seen_languages for trial in board.trials}) > 1:
        about += " The systems were trained on different languages: the last three columns are over each one's own."
    return _table(columns, title, marking, about, (*spans, ("", 1)))


def part_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table | None:
    """Returns a table by group of languages and by subset; None without subsets."""
    if not board.subsets:
        return None
    return _table(_part_columns(board, metric), title, marking, "A part's mean is over its questions.")


def _part_columns(board: Scoreboard, metric: str) -> list[Column]:
    """Returns the columns of the whole data set, groups of languages and subsets, without empty ones and repeats."""
    columns = [Column(board, metric, ("", group), group.replace("_", "-")) for group in ("seen", "zero_shot")]
    subsets = (subset for subset in board.subsets if "/" not in subset)  # those of two labels have tables of their own
    columns += [Column(board, metric, (subset, "all"), subset.replace("_", " ")) for subset in subsets]
    return [Column(board, metric, ("", "all"), "all"), *(column for column in columns if board.is_proper(column.part))]


class Difference(NamedTuple):
    """A system's difference from another on one part of the data."""

    estimate: Estimate
    p_value: float  # corrected for the number of differences

    def tone(self, metric: str, marking: Marking) -> Tone:
        """Returns whether the difference is better or worse; empty if it is not significant."""
        if metric in UNRANKED or not self.p_value < marking.threshold:
            return ""
        return "better" if self.estimate.value > 0 else "worse"


def part_differences(board: Scoreboard, metric: str, marking: Marking) -> dict[System, dict[str, Difference]]:
    """Returns each system's differences from `marking.against` by group of languages and by subset.

    The p-values of all differences are corrected together (Holm). Systems that cannot be compared are omitted.
    """
    columns, others = _part_columns(board, metric), rivals(board, marking.against)
    estimates = {
        (system, column.name): estimate
        for system, rival in others.items()
        for column in columns
        if (estimate := board.difference(system, rival, metric, column.part)) is not None
    }
    adjusted = holm([estimate.p_value for estimate in estimates.values()])
    compared: dict[System, dict[str, Difference]] = {}
    for ((system, name), estimate), p_value in zip(estimates.items(), adjusted, strict=True):
        compared.setdefault(system, {})[name] = Difference(estimate, p_value)
    return compared


def difference_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table | None:
    """Returns a table of the differences from `marking.against`, see `part_differences`; None without differences."""
    compared = part_differences(board, metric, marking)
    if not compared:
        return None
    names = [column.name for column in _part_columns(board, metric)]

    def cell(difference: Difference | None) -> Cell:
        if difference is None:
            return Cell("–")
        digits = f"{difference.p_value:.3f}".removeprefix("0") if difference.p_value < 1 else "1"
        p_text = "<.001" if difference.p_value < 0.001 else digits
        value = difference.estimate.value
        text = (
            f"{'-' if value < 0 else '+'}{_number(abs(value), metric)}{_half(difference.estimate, metric)} (p {p_text})"
        )
        return Cell(text, difference.tone(metric, marking))

    seeds = " and, where both have the same seeds, by seed" if board.paired_seeds else ""
    tests = sum(map(len, compared.values()))
    note = (
        f"{'' if metric in NOT_SHARES else 'Percentage points. '}{INTERVAL}"
        f"{_alone(board, {*compared, *rivals(board, marking.against).values()})}"
        f" p: paired by question{seeds}, corrected for the {tests} tests of this table (Holm);"
        f" marked where p < {marking.threshold:g}. A part's mean is over its questions."
    )
    lines = _sections(list(compared), lambda system: (Cell(system[1]), *(cell(compared[system].get(n)) for n in names)))
    return Table(title=title, header=("", *names), note=note, **lines)


def rivals(board: Scoreboard, against: str | None) -> dict[System, System]:
    """Returns the system with which each other one is compared: that of method `against` with its model and point."""
    others = {system: board.rival(system, against) for system in board.systems} if against is not None else {}
    return {system: rival for system, rival in others.items() if rival is not None and rival != system}


def runs_table(board: Scoreboard, title: str, metrics: Sequence[str]) -> Table:
    """Returns a table of the number of runs and the means over all languages with their intervals."""

    def line(system: System) -> tuple[Cell, ...]:
        scores = [board.score(system, metric, ("", "all")) for metric in metrics]
        known = [score for score in scores if score is not None]
        counts = f"{known[0].runs} / {known[0].trials}" if known else "–"
        cells = (Cell(_with_interval(score, metric)) for score, metric in zip(scores, metrics, strict=True))
        return Cell(system[1]), Cell(counts), *cells

    header = ("", "runs / inferences", *(METRIC_NAMES.get(metric, metric) for metric in metrics))
    note = f"Means over all languages. {INTERVAL}{_alone(board)}{judged_note(metrics)}"
    return Table(title=title, header=header, note=note, **_sections(board.systems, line))


def study_table(board: Scoreboard, title: str, metric: str, axis: str, group: str) -> Table:
    """Returns a table with a row per method and a column per point of the study's axis."""
    points = study_points(board)
    methods = list(dict.fromkeys((trial.model, trial.method) for trial in board.trials))
    systems = {(trial.model, trial.method, trial.point): trial.system for trial in board.trials}

    def line(method: System) -> tuple[Cell, ...]:
        placed = (systems.get((*method, point)) for point in points)
        scores = (board.score(system, metric, ("", group)) if system else None for system in placed)
        return Cell(method[1]), *(Cell(_with_interval(score, metric)) for score in scores)

    note = f"Columns: {axis}. Means over the languages of the group. {INTERVAL}{_alone(board)}{judged_note((metric,))}"
    return Table(title=title, header=("", *map(point_name, points)), note=note, **_sections(methods, line))


def study_points(board: Scoreboard) -> list[float | str]:
    """Returns the points of a study's axis: numbers in increasing order, then names in order of appearance."""
    points = [trial.point for trial in board.trials if trial.point is not None]
    numbers = sorted({point for point in points if not isinstance(point, str)})
    return [*numbers, *dict.fromkeys(point for point in points if isinstance(point, str))]


def _table(
    columns: Sequence[Column], title: str, marking: Marking, about: str, spans: tuple[tuple[str, int], ...] = ()
) -> Table:
    """Returns a table with a row per system; ranks are within a model, by the digits shown."""
    systems = list(dict.fromkeys(system for column in columns for system in column.board.systems))
    lines: dict[System, list[Cell]] = {system: [Cell(system[1])] for system in systems}
    for column in columns:
        board, metric, compared = column.board, column.metric, rivals(column.board, marking.against)
        scores = {system: board.score(system, metric, column.part) for system in systems}
        shown = {system: _number(score.value, metric) for system, score in scores.items() if score is not None}
        for system in systems:
            others = [text for other, text in shown.items() if other[0] == system[0]]
            rank: Rank = ""
            if metric not in UNRANKED and system in shown and len(others) > 1:
                better = {text for text in others if float(text) > float(shown[system])}
                rank = "" if len(better) > 1 else "second" if better else "best"
            rival = compared.get(system)
            difference = board.difference(system, rival, metric, column.part) if rival else None
            mark = "*" if difference is not None and difference.p_value < marking.threshold else ""
            lines[system].append(Cell(_with_interval(scores[system], metric), rank=rank, mark=mark))
    shares = {column.metric not in NOT_SHARES for column in columns}
    unit = "Percent. " if shares == {True} else "Shares in percent. " if True in shares else ""
    alone = next(filter(None, map(_alone, dict.fromkeys(column.board for column in columns))), "")
    judged = judged_note(column.metric for column in columns)
    ranked = any(column.metric not in UNRANKED for column in columns)
    ranks = " Best in bold, second underlined." if ranked else ""
    return Table(
        title=title,
        header=("", *(column.name for column in columns)),
        note=f"{unit}{about} {INTERVAL}{alone}{judged}{ranks}{marking.note}",
        spans=spans,
        **_sections(systems, lambda system: tuple(lines[system])),
    )


def _sections(systems: Sequence[System], line: Callable[[System], tuple[Cell, ...]]) -> dict[str, Any]:
    """Returns the sections of a table, one per model, and their titles if there are several."""
    models = list(dict.fromkeys(model for model, _ in systems))
    sections = tuple(tuple(line(system) for system in systems if system[0] == model) for model in models)
    return {"sections": sections, "section_titles": tuple(models) if len(models) > 1 else ()}


def _with_interval(score: SystemScore | None, metric: str) -> str:
    """Returns a score with its interval and, for metrics that score only some answers, their number in brackets."""
    judged = f" ({0 if score is None else score.count:,})" if metric in COUNTED else ""
    return f"–{judged}" if score is None else f"{_number(score.value, metric)}{_half(score, metric)}{judged}"


def _half(estimate: SystemScore | Estimate, metric: str) -> str:
    return "" if math.isnan(estimate.half) else f" ±{_number(estimate.half, metric)}"


def _alone(board: Scoreboard, systems: Iterable[System] | None = None) -> str:
    """Returns a note that intervals of single runs are over questions only; empty without single runs."""
    runs = (len({trial.run for trial in board.trials if trial.system == system}) for system in systems or board.systems)
    return " Of one run: over questions only." if 1 in runs else ""


def _number(value: float, metric: str) -> str:
    return f"{value:.2f}" if metric in NOT_SHARES else f"{100 * value:.1f}"
