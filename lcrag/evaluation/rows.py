"""Rows of `evaluation.json`, each with one value of a metric and its labels."""

import collections
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated

import pydantic

from lcrag.errors import UserError
from lcrag.files import write_text

# NaN, null in JSON, if unknown.
Nullable = Annotated[float, pydantic.BeforeValidator(lambda number: math.nan if number is None else number)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One value of a metric and its labels."""

    method: str  # e.g. "LcRL"
    model: str
    dataset: str
    split: str  # its split; a subset of one is "held_out/native_missing"
    language: str  # an ISO 639-1 code, "all", "seen" or "zero_shot"
    metric: str
    value: Nullable  # NaN if no question was scored
    count: int  # number of questions that were averaged
    seed: int | str  # of the inference run, or those that were averaged, "0,1,2"
    standard_error: Nullable = math.nan


class _File(pydantic.BaseModel, strict=True):
    rows: list[Row]


def write_rows(path: str | pathlib.Path, rows: Sequence[Row]) -> None:
    """Replaces a file atomically by `{"rows": [...]}`, with one row per line."""
    path = pathlib.Path(path)
    lines = ",\n".join(json.dumps(_as_json(row), ensure_ascii=False) for row in rows)
    write_text(path, f'{{"rows": [\n{lines}\n]}}\n')


def _as_json(row: Row) -> dict[str, str | int | float | None]:
    numbers = {"value": row.value, "standard_error": row.standard_error}
    return dataclasses.asdict(row) | {name: None if math.isnan(each) else each for name, each in numbers.items()}


def read_rows(path: str | pathlib.Path) -> list[Row]:
    """Reads a file of `write_rows`.

    Raises:
      UserError: the file is missing or not JSON, or a row lacks a field or has one of the wrong type.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no evaluation in {path}: run `lcrag evaluate` with this output folder first")
    try:
        return _File.model_validate_json(path.read_bytes()).rows
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = (f"row {part + 1}" if isinstance(part, int) else f'"{part}"' for part in first["loc"])
        where = ", ".join([str(path), *place])
        raise UserError(f"{where}: {first['msg']}; delete the file and run `lcrag evaluate` again") from error


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """Averages rows that differ only in their seed; rows without a value are ignored.

    The standard error of an average is set to the mean of the seeds' standard errors. This is an upper bound, because
    all seeds answer the same questions.
    """
    groups = collections.defaultdict(list)
    for row in rows:
        groups[(row.method, row.model, row.dataset, row.split, row.language, row.metric)].append(row)
    return [own[0] if len(own) == 1 else _average(own) for own in groups.values()]


def _average(rows: Sequence[Row]) -> Row:
    values = [row.value for row in rows if not math.isnan(row.value)]
    errors = [row.standard_error for row in rows if not math.isnan(row.standard_error)]
    return dataclasses.replace(
        rows[0],
        value=statistics.fmean(values) if values else math.nan,
        standard_error=statistics.fmean(errors) if errors else math.nan,
        count=sum(row.count for row in rows),
        seed=",".join(str(row.seed) for row in rows),
    )
