"""Tables: comma- or tab-separated files and Parquet."""

import csv
import io
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from lcrag.data.rows import BadRows, Schema, at_least_one, read_text, validated
from lcrag.errors import UserError

_LONGEST_FIELD = 1 << 27
_ROWS_PER_READ = 256


def table_rows(
    path: pathlib.Path,
    schema: type[Schema],
    bad_rows: BadRows,
    *,
    delimiter: str = "\t",
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for a table, plain or gzipped; a row of several lines has the number of the last one.

    Args:
      schema: Schema of a row, all of whose values are strings.
      delimiter: Field separator.
      columns: Column names; None: the first line holds them.

    Raises:
      UserError: the file cannot be read, it has no valid row, or a row is bad and bad rows are not skipped.
    """

    def rows() -> Iterator[tuple[int, Schema]]:
        csv.field_size_limit(_LONGEST_FIELD)
        text = io.StringIO(read_text(path).removeprefix("\ufeff"), newline="")
        lines = csv.DictReader(text, fieldnames=columns, delimiter=delimiter)
        for cells in lines:
            values = {name: value for name, value in cells.items() if name and value is not None}
            if (row := validated(schema.model_validate, values, path, lines.line_num, bad_rows)) is not None:
                yield lines.line_num, row

    return at_least_one(path, rows(), bad_rows, "the table is empty")


def tab_separated_dictionaries(
    file: io.BufferedIOBase, path: pathlib.Path, bad_rows: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, column -> value); a row with wrong quoting or a stray carriage return is a bad row."""
    csv.field_size_limit(_LONGEST_FIELD)
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


def parquet_dictionaries(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet file, some hundreds of which are in memory at a time.

    Raises:
      UserError: the file is damaged.
    """
    try:
        for batch in parquet.ParquetFile(file, pre_buffer=False).iter_batches(_ROWS_PER_READ):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): download it again") from error
