"""Rows of data files, checked one by one: a wrong one is named by its file, line and field."""

import codecs
import collections
import dataclasses
import gzip
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

import pydantic

from lcrag.errors import UserError

Schema = TypeVar("Schema", bound=pydantic.BaseModel)
# A text that says something; white space around it is taken off.
Text = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1)]


class Row(pydantic.BaseModel):
    """A schema to derive from: no value is converted, and fields that it does not name are ignored."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)


class UnusableQuestion(ValueError):
    """Raised for a row that cannot become the question wanted.

    Attributes:
      cause: Short name of the reason, under which `BadRows` counts the row.
    """

    def __init__(self, cause: str, detail: str):
        super().__init__(f"{cause}: {detail}")
        self.cause = cause


@dataclasses.dataclass(kw_only=True)
class BadRows:
    """What becomes of rows that cannot be used.

    Attributes:
      skip: Leave them out and count them; otherwise the first one ends the reading.
      problems: One line for each that was left out.
      causes: How many were left out for each cause that was named.
    """

    skip: bool = False
    problems: list[str] = dataclasses.field(default_factory=list, init=False)
    causes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter, init=False)

    def add(self, path: pathlib.Path, line: int | None, field: str, problem: str, *, cause: str = "") -> None:
        """Counts a bad row.

        Args:
          path: Its file.
          line: Its line, from 1; None where the file has no telling lines.
          field: The field that is wrong, dots between its parts; empty: the row as a whole.
          problem: What is wrong with it.
          cause: What it is counted under, where rows can be bad for several reasons that matter; empty: under none.

        Raises:
          UserError: bad rows are not skipped.
        """
        place = f"{path}{f', line {line}' if line else ''}{f', field {field}' if field else ''}"
        if not self.skip:
            raise UserError(f"{place}: {problem}; mend the row, or leave bad rows out with --skip_bad_rows")
        self.problems.append(f"{place}: {problem}")
        if cause:
            self.causes[cause] += 1

    def summary(self) -> str:
        """How many there were, under which causes, and the first of them; empty if there were none."""
        if not self.problems:
            return ""
        rows = "1 bad row was" if len(self.problems) == 1 else f"{len(self.problems)} bad rows were"
        causes = ", ".join(f"{count} {cause}" for cause, count in self.causes.most_common())
        return f"{rows} left out{causes and f' ({causes})'}; the first: {self.problems[0]}"


def read_rows(path: pathlib.Path, schema: type[Schema], bad_rows: BadRows) -> Iterator[tuple[int, Schema]]:
    """The rows of a file of JSON lines, plain or gzipped, with their line numbers.

    Raises:
      UserError: the file cannot be read, none of its rows has the schema, or one has not and bad rows are not skipped.
    """
    return parsed_rows(path, _lines(path), schema, bad_rows)


def parsed_rows(
    path: pathlib.Path, lines: Iterable[bytes], schema: type[Schema], bad_rows: BadRows
) -> Iterator[tuple[int, Schema]]:
    """The rows in the lines of a file, as `read_rows`; a byte order mark in front of the first is no part of it."""
    good, before = 0, len(bad_rows.problems)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = schema.model_validate_json(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
        except pydantic.ValidationError as error:
            bad_rows.add(path, number, *first_problem(error))
            continue
        good += 1
        yield number, row
    if not good:
        problems = bad_rows.problems[before:]
        raise UserError(f"no row of {path} can be used: {problems[0] if problems else 'the file is empty'}")


def first_problem(error: pydantic.ValidationError) -> tuple[str, str]:
    """The first field that breaks a schema, and how."""
    first = error.errors(include_url=False, include_context=False)[0]
    message = "input should be an object" if first["type"] == "model_type" else first["msg"]
    return ".".join(map(str, first["loc"])), message[:1].lower() + message[1:]


def read_text(path: pathlib.Path) -> str:
    """A whole file, plain or gzipped.

    Raises:
      UserError: it cannot be read.
    """
    try:
        return b"".join(_lines(path)).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}): download it again, or save it as UTF-8") from error


def _lines(path: pathlib.Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error
