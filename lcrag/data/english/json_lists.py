"""Rows of a JSON file that is one long list, checked one at a time: a training file has half a gigabyte."""

import json
import pathlib
from collections.abc import Iterator

import pydantic

from lcrag.data.json_places import elements_in_json
from lcrag.data.rows import BadRows, Schema, first_problem, read_text
from lcrag.errors import UserError


def list_rows(
    path: pathlib.Path, schema: type[Schema], bad_rows: BadRows, key: str = ""
) -> Iterator[tuple[int, int, Schema]]:
    """(line, number from 0, row) of the rows of a JSON list, plain or gzipped.

    Args:
      path: The file.
      schema: Of a row.
      bad_rows: What becomes of rows that have another.
      key: Under which the list stands in an object; empty: the list is all there is.

    Raises:
      UserError: the file is no JSON or holds no list, none of its rows has the schema, or one has not and bad rows are
        not skipped.
    """
    good, before = 0, len(bad_rows.problems)
    for number, (line, text) in enumerate(_elements(path, read_text(path).removeprefix("\ufeff"), key)):
        try:
            row = schema.model_validate_json(text)
        except pydantic.ValidationError as error:
            field, problem = first_problem(error)
            bad_rows.add(path, line, ".".join(filter(None, (key, str(number), field))), problem)
            continue
        good += 1
        yield line, number, row
    if not good:
        problems = bad_rows.problems[before:]
        raise UserError(f"no row of {path} can be used: {problems[0] if problems else 'its list is empty'}")


def _elements(path: pathlib.Path, text: str, key: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each element."""
    line, counted = 1, 0
    try:
        for start, end in elements_in_json(text, (key,) if key else ()):
            line, counted = line + text.count("\n", counted, start), start
            yield line, text[start:end]
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: this is no JSON ({error.msg}): download it again") from error
    except LookupError as error:
        raise UserError(f"{path} holds no list{f' under {key}' if key else ''}: is it another file?") from error
