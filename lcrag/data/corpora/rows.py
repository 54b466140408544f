"""Rows of Parquet, JSON lines and tab-separated files, each checked against a schema."""

import csv
import io
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pydantic

from lcrag.data.rows import BadRows, Schema, first_problem
from lcrag.errors import UserError

_ROWS_PER_READ = 256


def json_rows(file: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows) -> Iterator[Schema]:
    """The rows of JSON lines.

    Raises:
      UserError: a row has not the schema, and bad rows are not skipped.
    """
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                row = schema.model_validate_json(line)
            except pydantic.ValidationError as error:
                bad_rows.add(path, number, *first_problem(error))
                continue
            yield row


def parquet_rows(
    file: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows
) -> Iterator[Schema]:
    """The rows of a Parquet file, read a group of rows at a time; its lines are its rows.

    Raises:
      UserError: the file is damaged; or a row has not the schema, and bad rows are not skipped.
    """
    for number, values in enumerate(_parquet_dictionaries(file, path), start=1):
        try:
            row = schema.model_validate(values)
        except pydantic.ValidationError as error:
            bad_rows.add(path, number, *first_problem(error))
            continue
        yield row


def tab_separated_rows(
    file: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows
) -> Iterator[Schema]:
    """The rows of a file whose first line names its columns, quoted as spreadsheets quote.

    Raises:
      UserError: a row has not the schema, and bad rows are not skipped.
    """
    csv.field_size_limit(1 << 27)
    lines = csv.DictReader((line.decode() for line in file), delimiter="\t")
    for values in lines:
        try:
            row = schema.model_validate(values)
        except pydantic.ValidationError as error:
            bad_rows.add(path, lines.line_num, *first_problem(error))
            continue
        yield row


def first_row(file: io.BufferedIOBase, path: pathlib.Path, is_parquet: bool) -> Mapping[str, Any]:
    """The first row of a Parquet file or of JSON lines as it is; empty where there is none.

    Raises:
      UserError: it cannot be read.
    """
    if is_parquet:
        return next(_parquet_dictionaries(file, path), {})
    line = next((line for line in file if line.strip()), b"{}")
    try:
        values = pydantic.TypeAdapter(dict[str, Any]).validate_json(line)
    except pydantic.ValidationError as error:
        raise UserError(f"{path}, line 1 is not a JSON object: is it a file of JSON lines?") from error
    return values


def _parquet_dictionaries(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    try:
        for batch in parquet.ParquetFile(file, pre_buffer=False).iter_batches(_ROWS_PER_READ):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error
