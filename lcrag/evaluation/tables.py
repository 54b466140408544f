"""Tables of one run: before and after by place, and several policies at one place."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from lcrag.evaluation.comparison import Place
from lcrag.evaluation.rows import Row
from lcrag.evaluation.significance import PairedDifference
from lcrag.evaluation.table import Cell, Table, Tone

METRIC_NAMES = {
    "c3_recall": "c3 recall",
    "c3_recall_bergen": "c3 recall (BERGEN)",
    "flexible_exact_match": "fEM",
    "exact_match": "EM",
    "squad_exact_match": "EM (SQuAD)",
    "squad_f1": "F1 (SQuAD)",
    "squad_accuracy": "accuracy (SQuAD)",
    "correct_language": "correct language",
    "searches": "searches",
    "retrieval_rounds": "retrieval rounds",
    "seconds_per_question": "seconds a question",
    "sampled_tokens": "sampled tokens",
    "score_per_log_token": "score per log token",
    "failures_without_passage": "failures without a passage",
    "plan_diversity": "distinct plans",
    "reward": "reward",
    "tool_rate": "tool rate",
    "tool_calls": "tool calls",
    "answered": "answered",
}
PLACE_NAMES = {"all": "all languages", "seen": "trained on", "zero_shot": "zero-shot"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a before/after table is made of.

    Attributes:
      rows: Rows of one data set, one seed or averaged over seeds.
      before: The method before.
      after: The method after.
      references: Methods shown beside them, by the first metric only.
      differences: Paired differences; where one is missing, the errors of both sides are added as if they were
        independent, which overstates the error of a difference on the same questions.
    """

    rows: Sequence[Row]
    before: str
    after: str
    references: tuple[str, ...] = ()
    differences: Mapping[tuple[Place, str], PairedDifference] = dataclasses.field(default_factory=dict)


def comparison_table(
    comparison: Comparison, title: str, sections: Sequence[Sequence[Place]], metrics: Sequence[str]
) -> Table:
    """Before and after, by place: the first metric with its difference ± standard error and the
    references, the other metrics as "before → after". Places without rows are left out.
    """
    index = _index(comparison.rows)
    first, *others = metrics
    header = (
        "",
        METRIC_NAMES.get(first, first),
        "difference",
        *comparison.references,
        *(METRIC_NAMES.get(metric, metric) for metric in others),
    )

    def line(place: Place) -> tuple[Cell, ...]:
        references = (index.get((method, place, first)) for method in comparison.references)
        return (
            Cell(place_name(place)),
            _change(comparison, index, place, first),
            _difference(comparison, index, place, first),
            *(Cell(value_text(row)) for row in references),
            *(_change(comparison, index, place, metric) for metric in others),
        )

    known = [[place for place in section if _has(comparison, index, place, first)] for section in sections]
    return Table(
        title=title,
        header=header,
        sections=tuple(tuple(line(place) for place in section) for section in known if section),
        note=f"{comparison.before} → {comparison.after}; ± is one standard error; marked where beyond two of them.",
    )


def method_table(
    rows: Sequence[Row], title: str, methods: Sequence[str], metrics: Sequence[str], place: Place
) -> Table:
    """One line a method: every metric with its standard error, at one place."""
    index = _index(rows)
    lines = tuple(
        (Cell(method), *(Cell(value_text(index.get((method, place, metric)))) for metric in metrics))
        for method in methods
    )
    header = ("", *(METRIC_NAMES.get(metric, metric) for metric in metrics))
    counts = sorted({row.count for row in rows if (row.split, row.language) == place and row.metric == metrics[0]})
    asked = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
    note = f"{place_name(place)}; {asked} answers a line; ± is one standard error."
    return Table(title=title, header=header, sections=(lines,), note=note)


def place_name(place: Place) -> str:
    """How a place reads: a language, a group of languages, or a subset of the split."""
    split, language = place
    subset = split.partition("/")[2].replace("_", " ")
    name = PLACE_NAMES.get(language, language)
    return name if not subset else subset if language == "all" else f"{subset}, {name}"


def _index(rows: Sequence[Row]) -> dict[tuple[str, Place, str], Row]:
    return {(row.method, (row.split, row.language), row.metric): row for row in rows}


def _has(comparison: Comparison, index: Mapping, place: Place, metric: str) -> bool:
    return any((method, place, metric) in index for method in (comparison.before, comparison.after))


def _change(comparison: Comparison, index: Mapping, place: Place, metric: str) -> Cell:
    before, after = (index.get((method, place, metric)) for method in (comparison.before, comparison.after))
    if before is None and after is None:
        return Cell("–")
    return Cell(" → ".join("–" if row is None else _number(row.value) for row in (before, after)))


def _difference(comparison: Comparison, index: Mapping, place: Place, metric: str) -> Cell:
    paired = comparison.differences.get((place, metric))
    before, after = (index.get((method, place, metric)) for method in (comparison.before, comparison.after))
    if paired is not None:
        difference, error = paired.difference, paired.standard_error
    elif before is None or after is None:
        return Cell("–")
    else:
        difference, error = after.value - before.value, math.hypot(before.standard_error, after.standard_error)
    tone: Tone = "better" if difference > 2 * error else "worse" if difference < -2 * error else "level"
    return Cell(f"{'-' if difference < 0 else '+'}{_number(abs(difference))}{_error(error)}", tone)


def value_text(row: Row | None) -> str:
    """A value with its standard error: .385 ±.021; a dash where there is none."""
    return "–" if row is None else f"{_number(row.value)}{_error(row.standard_error)}"


def _number(value: float) -> str:
    """Three digits: .385, 1.40."""
    return f"{value:.3f}".removeprefix("0") if 0 <= value < 0.9995 else f"{value:.2f}"


def _error(error: float) -> str:
    return "" if math.isnan(error) else f" ±{_number(error)}"
