"""The tables of a paper: systems by data set and metric, by language, by part, with their ranks and tests.

As in LcRL, numbers are percentages; an average over languages is the mean of the languages' means; the overall table
is over the languages trained on (the published Table 1 is the mean of Table 5's and 6's seen languages).
"""

import dataclasses
import math
from collections.abc import Sequence

from lcrag.evaluation.scoreboard import Part, Scoreboard, System, SystemScore, point_name
from lcrag.evaluation.table import Cell, Rank, Table
from lcrag.evaluation.tables import METRIC_NAMES

# Neither percentages nor better when higher.
NOT_SHARES = ("searches", "retrieval_rounds", "seconds_per_question", "sampled_tokens", "tool_calls")
UNRANKED = (*NOT_SHARES, "failures_without_passage", "tool_rate")
LANGUAGE_NAMES = {"seen": "seen", "zero_shot": "zero-shot", "all": "all"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marking:
    """Which differences are marked.

    Attributes:
      against: The method that all others are tested against; None: nothing is marked.
      threshold: A p-value below it is marked.
    """

    against: str | None = None
    threshold: float = 0.01

    @property
    def note(self) -> str:
        if self.against is None:
            return ""
        return f" * p < {self.threshold:g} against {self.against}."


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: a metric in a part of a scoreboard's data."""

    board: Scoreboard
    metric: str
    part: Part
    name: str


def overall_table(boards: Sequence[Scoreboard], title: str, metrics: Sequence[str], marking: Marking) -> Table:
    """Every system over the languages it was trained on: all metrics, data set by data set (LcRL, tables 1 and 2)."""
    columns = [
        Column(board, metric, ("", "seen"), METRIC_NAMES.get(metric, metric)) for board in boards for metric in metrics
    ]
    spans = tuple((board.dataset, len(metrics)) for board in boards)
    return _table(columns, title, marking, "Means over the languages trained on.", spans)


def language_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table:
    """Every system in every language, those trained on first, with the means of both kinds (LcRL, tables 5 and 6)."""
    seen, unseen = board.languages
    groups = [(seen, "seen", "trained on"), (unseen, "zero_shot", "zero-shot")]
    spans, columns = [], []
    for codes, group, name in groups:
        if codes:
            spans.append((name, len(codes) + 1))
            columns += [Column(board, metric, ("", code), LANGUAGE_NAMES.get(code, code)) for code in (*codes, group)]
    columns.append(Column(board, metric, ("", "all"), "all"))
    differ = len({trial.seen_languages for trial in board.trials}) > 1
    note = " The systems were trained on different languages: the last three columns are over each one's own."
    return _table(columns, title, marking, _zero_shot_note(unseen) + (note if differ else ""), (*spans, ("", 1)))


def _zero_shot_note(unseen: Sequence[str]) -> str:
    return f"Zero-shot: {', '.join(unseen)}." if unseen else "No language is zero-shot."


def part_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table | None:
    """Every system in every part of the data set that is reported apart; None if there is none."""
    if not board.subsets:
        return None
    parts: list[Part] = [("", group) for group in ("all", "seen", "zero_shot")]
    parts += [(subset, "all") for subset in board.subsets if "/" not in subset]  # parts of parts have tables of theirs
    names = [(subset or LANGUAGE_NAMES[group]).replace("_", " ") for subset, group in parts]
    columns = [Column(board, metric, part, name) for part, name in zip(parts, names, strict=True)]
    return _table(columns, title, marking, "A part's mean is over its questions.")


def spread_table(board: Scoreboard, title: str, metrics: Sequence[str]) -> Table:
    """Every system's runs, and its means over all languages with the standard error between the runs."""

    def line(system: System) -> tuple[Cell, ...]:
        standings = [board.standing(system, metric, ("", "all")) for metric in metrics]
        known = [standing for standing in standings if standing is not None]
        counts = f"{known[0].runs} / {known[0].trials}" if known else "–"
        cells = (Cell(_with_error(standing, m)) for standing, m in zip(standings, metrics, strict=True))
        return Cell(system[1]), Cell(counts), *cells

    header = ("", "runs / inferences", *(METRIC_NAMES.get(metric, metric) for metric in metrics))
    note = "Means over all languages; ± is the standard error between runs (of a single one, between its inferences)."
    return Table(title=title, header=header, note=note, **_blocks(board.systems, line))


def study_table(board: Scoreboard, title: str, metric: str, axis: str, group: str) -> Table:
    """A line for each method, a column for each point of the study's axis."""
    points = sorted_points([trial.point for trial in board.trials if trial.point is not None])
    methods = list(dict.fromkeys((trial.model, trial.method) for trial in board.trials))
    systems = {(trial.model, trial.method, trial.point): trial.system for trial in board.trials}

    def line(method: System) -> tuple[Cell, ...]:
        found = (systems.get((*method, point)) for point in points)
        standings = (system and board.standing(system, metric, ("", group)) for system in found)
        return Cell(method[1]), *(Cell(_with_error(standing or None, metric)) for standing in standings)

    note = f"Columns: {axis}. Means over the languages of the group; ± is the standard error between runs."
    return Table(title=title, header=("", *map(point_name, points)), note=note, **_blocks(methods, line))


def sorted_points(points: Sequence[float | str]) -> list[float | str]:
    """Each once; numbers in order and before names, names as they came."""
    numbers = sorted({point for point in points if not isinstance(point, str)})
    return [*numbers, *dict.fromkeys(point for point in points if isinstance(point, str))]


def _table(
    columns: Sequence[Column], title: str, marking: Marking, about: str, spans: tuple[tuple[str, int], ...] = ()
) -> Table:
    systems = list(dict.fromkeys(system for column in columns for system in column.board.systems))
    cells = [_column_cells(column, systems, marking) for column in columns]
    by_system = {system: (Cell(system[1]), *(column[system] for column in cells)) for system in systems}
    return Table(
        title=title,
        header=("", *(column.name for column in columns)),
        note=f"Percent. {about} Best in bold, second underlined.{marking.note}",
        spans=spans,
        **_blocks(systems, by_system.__getitem__),
    )


def _blocks(systems: Sequence[System], line) -> dict:
    """The sections of a table, one for each model, and their titles if there are several."""
    models = list(dict.fromkeys(model for model, _ in systems))
    sections = tuple(tuple(line(system) for system in systems if system[0] == model) for model in models)
    return {"sections": sections, "section_titles": tuple(models) if len(models) > 1 else ()}


def _column_cells(column: Column, systems: Sequence[System], marking: Marking) -> dict[System, Cell]:
    """The cells of a column: ranks are within a model, and by the digits that are shown."""
    standings = {system: column.board.standing(system, column.metric, column.part) for system in systems}
    texts = {system: _shown(standing, column.metric) for system, standing in standings.items()}
    cells = {}
    for system, text in texts.items():
        rivals = [other for other in systems if other[0] == system[0] and standings[other] is not None]
        rank: Rank = ""
        if column.metric not in UNRANKED and standings[system] is not None and len(rivals) > 1:
            better = {texts[other] for other in rivals if float(texts[other]) > float(text)}
            rank = "" if len(better) > 1 else "second" if better else "best"
        cells[system] = Cell(text, rank=rank, mark="*" if _is_marked(column, system, marking) else "")
    return cells


def _is_marked(column: Column, system: System, marking: Marking) -> bool:
    rival = column.board.rival(system, marking.against) if marking.against is not None else None
    if rival in (None, system) or system not in column.board.systems:
        return False
    return column.board.p_value(system, rival, column.metric, column.part) < marking.threshold


def _shown(standing: SystemScore | None, metric: str) -> str:
    if standing is None:
        return "–"
    return f"{standing.value:.2f}" if metric in NOT_SHARES else f"{100 * standing.value:.1f}"


def _with_error(standing: SystemScore | None, metric: str) -> str:
    if standing is None or math.isnan(standing.standard_error):
        return _shown(standing, metric)
    error = standing.standard_error
    return f"{_shown(standing, metric)} ±{f'{error:.2f}' if metric in NOT_SHARES else f'{100 * error:.1f}'}"
