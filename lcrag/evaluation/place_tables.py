"""One policy's numbers: every metric by language, by group of languages and by part of the data set."""

from collections.abc import Iterable, Sequence

from lcrag.evaluation.comparison import Place
from lcrag.evaluation.rows import Row, mean_over_seeds
from lcrag.evaluation.table import Cell, Table
from lcrag.evaluation.tables import METRIC_NAMES, PLACE_NAMES, place_name, value_text

SECONDS = "seconds_per_question"


def place_tables(rows: Iterable[Row], metrics: Sequence[str]) -> list[Table]:
    """A table for every method and data set, inference runs averaged.

    Args:
      rows: Of one split; `seconds_per_question` is told in the note.
      metrics: The columns; one that no row has is left out.
    """
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in mean_over_seeds(rows):
        parts.setdefault((row.method, row.dataset), []).append(row)
    return [_table(own, metrics) for own in parts.values()]


def _table(rows: Sequence[Row], metrics: Sequence[str]) -> Table:
    index = {((row.split, row.language), row.metric): row for row in rows}
    shown = [metric for metric in metrics if any(row.metric == metric for row in rows)]
    sections = _sections([row for row in rows if row.metric in shown])

    def line(place: Place) -> tuple[Cell, ...]:
        found = [index.get((place, metric)) for metric in shown]
        count = max(row.count for row in found if row is not None)
        return (Cell(place_name(place)), Cell(f"{count:,}"), *(Cell(value_text(row)) for row in found))

    whole = _whole(rows)
    seconds = index.get(((whole, "all"), SECONDS))
    return Table(
        title=f"{rows[0].method}: {rows[0].dataset}, {whole}",
        header=("", "answers", *(METRIC_NAMES[metric] for metric in shown)),
        sections=tuple(tuple(line(place) for place in section) for section in sections),
        note="± is one standard error." + (f" {seconds.value:.3f} seconds a question." if seconds else ""),
    )


def _sections(rows: Sequence[Row]) -> list[list[Place]]:
    """Groups of languages, languages, parts; what repeats another line is left out."""
    whole = _whole(rows)
    places = dict.fromkeys((row.split, row.language) for row in rows)
    languages = [place for place in places if place[0] == whole and place[1] not in PLACE_NAMES]
    groups = [(whole, name) for name in PLACE_NAMES if (whole, name) in places]
    both = (whole, "zero_shot") in places and (whole, "seen") in places
    parts = [place for place in places if place[0] != whole and place[1] == "all"]
    sections = [groups if both else groups[:1], languages if len(languages) > 1 else [], parts]
    return [section for section in sections if section]


def _whole(rows: Sequence[Row]) -> str:
    """The split itself, whose name all its parts begin with."""
    return rows[0].split.partition("/")[0]
