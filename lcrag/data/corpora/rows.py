"""Rows of Parquet, JSON lines and tab-separated files, each checked against a schema."""

import csv
import io
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pydantic

from lcrag.data.rows import BadRows, Schema, first_problem
from lcrag.errors import UserError

_ROWS_PER_READ = 256
# Of JSON lines, which may be bad: what a file holds is told by the first good one among so many.
_LINES_LOOKED_AT = 100


def json_rows(file: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows) -> Iterator[Schema]:
    """The rows of JSON lines.

    Raises:
      UserError: a row has not the schema, and bad rows are not skipped.
    """
    lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    return _checked(lines, schema.model_validate_json, path, bad_rows)


def parquet_rows(
    file: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows
) -> Iterator[Schema]:
    """The rows of a Parquet file, read a group of rows at a time; its lines are its rows.

    Raises:
      UserError: the file is damaged; or a row has not the schema, and bad rows are not skipped.
    """
    return _checked(enumerate(_parquet_dictionaries(file, path), start=1), schema.model_validate, path, bad_rows)


def tab_separated_rows(
    file: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows
) -> Iterator[Schema]:
    """The rows of a file whose first line names its columns, quoted as spreadsheets quote.

    Raises:
      UserError: a row has not the schema, and bad rows are not skipped.
    """
    return _checked(_tab_separated_dictionaries(file, path, bad_rows), schema.model_validate, path, bad_rows)


def _checked(
    numbered: Iterable[tuple[int, Any]], validate: Callable[[Any], Schema], path: pathlib.Path, bad_rows: BadRows
) -> Iterator[Schema]:
    for number, values in numbered:
        try:
            row = validate(values)
        except pydantic.ValidationError as error:
            bad_rows.add(path, number, *first_problem(error))
            continue
        yield row


def first_row(file: io.BufferedIOBase, path: pathlib.Path, is_parquet: bool) -> Mapping[str, Any]:
    """The first row of a Parquet file, or the first JSON object of JSON lines, as it is; empty where there is none.

    Raises:
      UserError: it cannot be read.
    """
    if is_parquet:
        return next(_parquet_dictionaries(file, path), {})
    lines = [line for line in itertools.islice(file, _LINES_LOOKED_AT) if line.strip()]
    for line in lines:
        try:
            return pydantic.TypeAdapter(dict[str, Any]).validate_json(line)
        except pydantic.ValidationError:  # a bad row, which is named or counted when the rows are read
            continue
    if lines:
        raise UserError(f"no line of {path}, from line 1 on, is a JSON object: is it a file of JSON lines?")
    return {}


def _parquet_dictionaries(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    try:
        for batch in parquet.ParquetFile(file, pre_buffer=False).iter_batches(_ROWS_PER_READ):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error


def _tab_separated_dictionaries(
    file: io.BufferedIOBase, path: pathlib.Path, bad_rows: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, column -> value) of every row; one that is quoted wrongly, or broken by a carriage return, is bad."""
    csv.field_size_limit(1 << 27)
    rows = csv.DictReader((line.decode() for line in file), delimiter="\t")
    while True:
        try:
            values = next(rows, None)
        except csv.Error as error:
            bad_rows.add(path, rows.reader.line_num, "", str(error).partition(" - ")[0])
            continue
        if values is None:
            return
        yield rows.line_num, values
