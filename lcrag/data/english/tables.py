"""Rows of tables: lines of fields between tabs or commas, quoted as spreadsheets quote."""

import csv
import io
import pathlib
from collections.abc import Iterator, Sequence

import pydantic

from lcrag.data.rows import BadRows, Schema, first_problem, read_text
from lcrag.errors import UserError

_LONGEST_FIELD = 1 << 27


def table_rows(
    path: pathlib.Path,
    schema: type[Schema],
    bad_rows: BadRows,
    *,
    delimiter: str = "\t",
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[int, Schema]]:
    """(line, row) of the rows of a table, plain or gzipped; a row of several lines has the number of its last one.

    Args:
      path: The file.
      schema: Of a row, all of whose values are texts.
      bad_rows: What becomes of rows that have another.
      delimiter: What stands between fields.
      columns: Names of the columns; None: the first line names them.

    Raises:
      UserError: the file cannot be read, none of its rows has the schema, or one has not and bad rows are not skipped.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    good, before = 0, len(bad_rows.problems)
    text = io.StringIO(read_text(path).removeprefix("\ufeff"), newline="")
    lines = csv.DictReader(text, fieldnames=columns, delimiter=delimiter)
    for values in lines:
        try:
            row = schema.model_validate({name: value for name, value in values.items() if name and value is not None})
        except pydantic.ValidationError as error:
            bad_rows.add(path, lines.line_num, *first_problem(error))
            continue
        good += 1
        yield lines.line_num, row
    if not good:
        problems = bad_rows.problems[before:]
        raise UserError(f"no row of {path} can be used: {problems[0] if problems else 'the table is empty'}")
