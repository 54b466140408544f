"""Rows of data files, validated one by one; a message about a bad row names its file, line and field."""

import codecs
import collections
import dataclasses
import gzip
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import pydantic
import pydantic_core

from lcrag.data.questions import fault_of
from lcrag.errors import AbsentError, UserError

Schema = TypeVar("Schema", bound=pydantic.BaseModel)
Item = TypeVar("Item")


def _usable(text: str) -> str:
    if fault := fault_of(text):
        raise pydantic_core.PydanticCustomError("text", "the text {fault}", {"fault": fault})
    return text


# A text with a visible character and no control characters; surrounding white space is stripped.
Text = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1), pydantic.AfterValidator(_usable)]


class Row(pydantic.BaseModel):
    """Base class of schemas: values are not converted, and unknown fields are ignored."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)


class UnusableQuestion(ValueError):
    """Raised for a row that cannot be converted to a question.

    Attributes:
      cause: Short name of the reason, under which `BadRows` counts the row.
    """

    def __init__(self, cause: str, detail: str):
        super().__init__(f"{cause}: {detail}")
        self.cause = cause


@dataclasses.dataclass(kw_only=True)
class BadRows:
    """Raises an error for the first bad row, or skips and counts bad rows.

    Attributes:
      skip: Whether to skip bad rows.
      problems: One line per skipped row.
      causes: Number of skipped rows per named cause.
    """

    skip: bool = False
    problems: list[str] = dataclasses.field(default_factory=list, init=False)
    causes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter, init=False)

    def add(self, path: pathlib.Path, line: int | None, field: str, problem: str, *, cause: str = "") -> None:
        """Records a bad row.

        Args:
          line: Its line, from 1; None if line numbers mean nothing in the file.
          field: Path of the wrong field, joined by dots; empty: the row as a whole.
          cause: Name to count the row under; empty: none.

        Raises:
          UserError: bad rows are not skipped.
        """
        place = f"{path}{f', line {line}' if line else ''}{f', field {field}' if field else ''}"
        if not self.skip:
            raise UserError(f"{place}: {problem}; correct the row, or skip bad rows with --skip_bad_rows")
        self.problems.append(f"{place}: {problem}")
        if cause:
            self.causes[cause] += 1

    def summary(self) -> str:
        """Returns the number of skipped rows, their causes and the first problem; empty if there are none."""
        if not self.problems:
            return ""
        rows = "1 bad row was" if len(self.problems) == 1 else f"{len(self.problems)} bad rows were"
        causes = ", ".join(f"{count} {cause}" for cause, count in self.causes.most_common())
        return f"{rows} left out{causes and f' ({causes})'}; the first: {self.problems[0]}"


def validated(
    validate: Callable[[Any], Schema], value: Any, path: pathlib.Path, line: int, bad_rows: BadRows, prefix: str = ""
) -> Schema | None:
    """Returns a validated row, or None if it is bad; `prefix` is the path of the row in its file."""
    try:
        return validate(value)
    except pydantic.ValidationError as error:
        field, problem = first_problem(error)
        bad_rows.add(path, line, ".".join(filter(None, (prefix, field))), problem)
        return None


def at_least_one(
    path: pathlib.Path, rows: Iterable[Item], bad_rows: BadRows, empty: str = "the file is empty"
) -> Iterator[Item]:
    """Yields the rows of a file.

    Raises:
      UserError: there is no usable row; the message gives the first bad row, or `empty`.
    """
    found, before = False, len(bad_rows.problems)
    for row in rows:
        found = True
        yield row
    if not found:
        problems = bad_rows.problems[before:]
        raise UserError(f"no row of {path} can be used: {problems[0] if problems else empty}")


def first_of_each_id(
    path: pathlib.Path, rows: Iterable[tuple[int, Item]], id_of: Callable[[Item], Any], field: str, bad_rows: BadRows
) -> Iterator[tuple[int, Item]]:
    """Yields the (line, row) pairs whose id occurs for the first time; the others are bad rows."""
    lines: dict[Any, int] = {}
    for line, row in rows:
        identity = id_of(row)
        if identity in lines:
            bad_rows.add(path, line, field, f"{identity} is already used in line {lines[identity]}")
            continue
        lines[identity] = line
        yield line, row


def read_rows(path: pathlib.Path, schema: type[Schema], bad_rows: BadRows) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for a file of JSON lines, plain or gzipped.

    Raises:
      UserError: the file cannot be read, it has no valid row, or a row is bad and bad rows are not skipped.
    """
    return parsed_rows(path, _lines(path), schema, bad_rows)


def parsed_rows(
    path: pathlib.Path, lines: Iterable[bytes], schema: type[Schema], bad_rows: BadRows
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for JSON lines; a byte order mark at the beginning is ignored. See `read_rows`."""

    def rows() -> Iterator[tuple[int, Schema]]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            value = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip()
            if (row := validated(schema.model_validate_json, value, path, number, bad_rows)) is not None:
                yield number, row

    return at_least_one(path, rows(), bad_rows)


def list_rows(
    path: pathlib.Path, schema: type[Schema], bad_rows: BadRows, key: str = ""
) -> Iterator[tuple[int, int, Schema]]:
    """Yields (line, index from 0, row) for the elements of a JSON list, plain or gzipped.

    Args:
      key: Key of the list in the file's object; empty: the file is the list.

    Raises:
      UserError: the file is not JSON or has no such list, it has no valid row, or a row is bad and bad rows are not
        skipped.
    """

    def rows() -> Iterator[tuple[int, int, Schema]]:
        for number, (line, text) in enumerate(_elements(path, read_text(path).removeprefix("\ufeff"), key)):
            prefix = ".".join(filter(None, (key, str(number))))
            if (row := validated(schema.model_validate_json, text, path, line, bad_rows, prefix)) is not None:
                yield line, number, row

    return at_least_one(path, rows(), bad_rows, "its list is empty")


def _elements(path: pathlib.Path, text: str, key: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each element."""
    line, counted = 1, 0
    try:
        for start, end in _elements_in_json(text, key):
            line, counted = line + text.count("\n", counted, start), start
            yield line, text[start:end]
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg}): download it again") from error
    except LookupError as error:
        raise UserError(f"{path} holds no list{f' under {key}' if key else ''}: is it another file?") from error


_IN_ROW = re.compile(r" at line 1 column (\d+)$")  # of a row of JSON lines, whose line is known


def first_problem(error: pydantic.ValidationError) -> tuple[str, str]:
    """Returns the first invalid field of a row and the problem with it."""
    first = error.errors(include_url=False, include_context=False)[0]
    message = "input should be an object" if first["type"] == "model_type" else first["msg"]
    message = _IN_ROW.sub(r" (character \1)", message)
    return ".".join(map(str, first["loc"])), message[:1].lower() + message[1:]


def read_text(path: pathlib.Path) -> str:
    """Returns the text of a file, plain or gzipped.

    Raises:
      UserError: it cannot be read or is not UTF-8.
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
        raise AbsentError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder: name a file in it") from error
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: you have no permission to") from error
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error


_BETWEEN = re.compile(r"[\s,:]*")
_DECODER = json.JSONDecoder()


def line_in_json(text: str, place: Sequence[str | int]) -> int:
    """Returns the line, from 1, on which the value at a place of a JSON text begins.

    Args:
      place: Existing keys and indices from the root to the value.
    """
    offset = _skip(text, 0)
    for part in place:
        offset = _offset_of(text, offset, part)
    return text.count("\n", 0, offset) + 1


def _elements_in_json(text: str, key: str) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each element of the list under `key`, or of the list that is the whole text.

    Raises:
      json.JSONDecodeError: an element is not JSON, or the list does not end.
      LookupError: there is no such list.
    """
    offset = _skip(text, 0)
    if key:
        if text[offset : offset + 1] != "{":
            raise LookupError(key)
        offset = _offset_of(text, offset, key)
    if text[offset : offset + 1] != "[":
        raise LookupError(key)
    offset = _skip(text, offset + 1)
    while text[offset : offset + 1] != "]":
        end = _DECODER.raw_decode(text, offset)[1]
        yield offset, end
        offset = _skip(text, end)


def _offset_of(text: str, start: int, part: str | int) -> int:
    """Returns where the value of a key or an index begins in the object or array that begins at `start`."""
    offset, name = _skip(text, start + 1), 0
    while True:
        if text[offset : offset + 1] in ("}", "]"):
            raise LookupError(part)
        key: str | int = name
        if isinstance(part, str):
            key, end = _DECODER.raw_decode(text, offset)
            offset = _skip(text, end)
        if key == part:
            return offset
        offset = _skip(text, _DECODER.raw_decode(text, offset)[1])
        name += 1


def _skip(text: str, offset: int) -> int:
    between = _BETWEEN.match(text, offset)
    return between.end() if between else offset
