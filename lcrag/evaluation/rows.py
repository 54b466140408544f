"""Rows of `evaluation.json`: one number, with everything that says what it is a number of."""

import collections
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number.

    Attributes:
      method: What was run, e.g. "LcRL".
      model: The policy.
      dataset: The data set.
      split: Its split; a part of one is "held_out/native_missing".
      language: An ISO 639-1 code, "all", "seen" or "zero_shot".
      metric: Name of the metric.
      value: The mean.
      count: How many questions it is the mean of.
      seed: The seed of the inference run, or the seeds that were averaged, "0,1,2".
      standard_error: Of the value; NaN (in JSON null) where it is unknown.
    """

    method: str
    model: str
    dataset: str
    split: str
    language: str
    metric: str
    value: float
    count: int
    seed: int | str
    standard_error: float = math.nan


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("method", "model", "dataset", "split", "language", "metric"), (str,)),
    "value": (int, float),
    "count": (int,),
    "seed": (int, str),
}


def write_rows(path: str | pathlib.Path, rows: Sequence[Row]) -> None:
    """Writes `{"rows": [...]}`, one row a line, replacing the file in one step."""
    path = pathlib.Path(path)
    lines = ",\n".join(json.dumps(_as_json(row), ensure_ascii=False) for row in rows)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(f'{{"rows": [\n{lines}\n]}}\n', encoding="utf-8")
    partial.replace(path)


def read_rows(path: str | pathlib.Path) -> list[Row]:
    """Reads what `write_rows` wrote.

    Raises:
      UserError: there is no such file, it is not JSON, or a row lacks a field or has one of the wrong type.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no evaluation in {path}: run `lcrag evaluate` with this output folder first")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path}{line} is not JSON: delete the file and run `lcrag evaluate` again") from error
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise UserError(f'{path} holds no list "rows": delete the file and run `lcrag evaluate` again')
    return [_as_row(entry, f"{path}, row {number}") for number, entry in enumerate(content["rows"], start=1)]


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """Averages rows that differ in their seed only.

    The standard error of an average is that between the seeds, s/√k; of a single seed its own.
    """
    groups = collections.defaultdict(list)
    for row in rows:
        groups[(row.method, row.model, row.dataset, row.split, row.language, row.metric)].append(row)
    return [own[0] if len(own) == 1 else _average(own) for own in groups.values()]


def _average(rows: Sequence[Row]) -> Row:
    values = [row.value for row in rows]
    return dataclasses.replace(
        rows[0],
        value=statistics.fmean(values),
        standard_error=statistics.stdev(values) / math.sqrt(len(values)),
        count=sum(row.count for row in rows),
        seed=",".join(str(row.seed) for row in rows),
    )


def _as_json(row: Row) -> dict[str, Any]:
    error = row.standard_error
    return dataclasses.asdict(row) | {"standard_error": None if math.isnan(error) else error}


def _as_row(entry: Any, where: str) -> Row:
    if not isinstance(entry, dict):
        raise UserError(f"{where} is not an object: delete the file and run `lcrag evaluate` again")
    for name, types in _TYPES.items():
        if name not in entry:
            raise UserError(f'{where} lacks "{name}": add it, or delete the file and run `lcrag evaluate` again')
        if not isinstance(entry[name], types) or isinstance(entry[name], bool):
            expected = " or ".join(kind.__name__ for kind in types)
            raise UserError(f'{where}: "{name}" is {entry[name]!r}, give it a value of type {expected}')
    error = entry.get("standard_error")
    fields = {name: entry[name] for name in _TYPES}
    return Row(**fields, standard_error=float(error) if isinstance(error, int | float) else math.nan)
