"""Finds data files and reads their rows, validated one by one: JSON lines, JSON lists, tables and Parquet.

Published data sets are downloaded by hand (docs/data.md).

A bad row is a `UserError` that names its file, its line (or its place in a JSON list) and the wrong field. With
`BadRows.skip`, the flag `--skip_bad_rows`, such rows are skipped and counted.
"""

import bz2
import codecs
import collections
import contextlib
import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import gin
import pyarrow
import pyarrow.parquet
import pydantic
import pydantic_core

from lcrag.data.questions import fault_of
from lcrag.errors import AbsentError, UserError
from lcrag.files import local_files

Schema = TypeVar("Schema", bound=pydantic.BaseModel)
Item = TypeVar("Item")
Place: TypeAlias = int | str  # of a row in its file: its line, from 1, or words

ENVIRONMENT = "LCRAG_DATA"
_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_MAX_FIELD_CHARACTERS = 1 << 27  # of a table; the standard library stops at 131,072
_ROWS_PER_READ = 256  # of Parquet files, whose row groups may hold a gigabyte


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
    """Raised for a row that cannot be converted to a question; `BadRows` counts it under `cause`."""

    def __init__(self, cause: str, detail: str):
        super().__init__(f"{cause}: {detail}")
        self.cause = cause


@gin.configurable
@dataclasses.dataclass(kw_only=True)
class BadRows:
    """Raises an error for the first bad row, or with `skip` counts them: a line in `problems`, `causes` by name."""

    skip: bool = False
    problems: list[str] = dataclasses.field(default_factory=list, init=False)
    causes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter, init=False)

    def add(self, path: pathlib.Path, place: Place | None, field: str, problem: str, *, cause: str = "") -> None:
        """Counts the row at a place (None: the path says it) under a cause, or raises a `UserError`."""
        row = f"line {place}" if isinstance(place, int) else place
        where = ", ".join(filter(None, (str(path), row, field and f"field {field}")))
        if not self.skip:
            raise UserError(f"{where}: {problem}; correct the row, or skip bad rows with --skip_bad_rows")
        self.problems.append(f"{where}: {problem}")
        if cause:
            self.causes[cause] += 1

    def summary(self) -> str:
        """Returns the number of skipped rows, their causes and the first problem; empty if there are none."""
        if not self.problems:
            return ""
        rows = "1 bad row was" if len(self.problems) == 1 else f"{len(self.problems)} bad rows were"
        causes = ", ".join(f"{count} {cause}" for cause, count in self.causes.most_common())
        return f"{rows} left out{causes and f' ({causes})'}; the first: {self.problems[0]}"


@contextlib.contextmanager
def counted_bad_rows() -> Iterator[BadRows]:
    """Yields the `BadRows` that gin configures; at the end, reports the number of skipped rows on standard error."""
    bad_rows = BadRows()
    yield bad_rows
    if summary := bad_rows.summary():
        print(f"lcrag: {summary}", file=sys.stderr)


def dataset_folder(
    dataset: str, folder: str | pathlib.Path | None = None, *, binding: str | None = None
) -> pathlib.Path:
    """Returns the folder of a data set's files: `folder` if given, else `$LCRAG_DATA/<dataset>`.

    The `AbsentError` of a folder that is not configured names `binding`, by default `<dataset>_questions.folder`.
    """
    if folder is None and ENVIRONMENT not in os.environ:
        raise AbsentError(
            f"the folder of {dataset} is not configured: set {ENVIRONMENT} to the folder that holds the folder"
            f" {dataset}, or bind {binding or f'{dataset}_questions.folder'}"
        )
    found = local_files(folder if folder is not None else f"{os.environ[ENVIRONMENT]}/{dataset}")
    if not found.is_dir():
        raise AbsentError(f"there is no folder {found} with the files of {dataset}: see docs/data.md for the downloads")
    return found


def data_file(folder: pathlib.Path, names: Sequence[str], source: str) -> pathlib.Path:
    """Returns the first existing file among some names (the official one first), as published, gzipped or unpacked.

    If none exists, the message of the `AbsentError` names `source`, the download address.
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz", folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
    raise AbsentError(f"there is no {names[0]} in {folder}: download {source}")


def records_fingerprint(records: Iterable[Any]) -> str:
    """Returns sixteen hexadecimal digits that identify the content of some dataclass instances, in order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(dataclasses.asdict(record), ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase]]:
    """Yields a file's content, decompressed if it ends in .gz or .bz2, and the file as stored, for its position.

    Within the block, damaged content and text that is not UTF-8 become a `UserError` that names the file.
    """
    try:
        with path.open("rb") as stored:
            yield _OPENERS.get(path.suffix, lambda file: file)(stored), stored
    except FileNotFoundError as error:
        raise AbsentError(f"there is no file {path}") from error
    except (EOFError, zlib.error, OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): download it again, or save it as UTF-8") from error


def read_text(path: pathlib.Path) -> str:
    """Returns the text of a file, without a byte order mark."""
    with opened(path) as (content, _):
        return content.read().decode("utf-8-sig")


def read_json(path: pathlib.Path) -> Any:
    """Returns the value in a JSON file."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg}): download it again") from error


def read_rows(
    path: pathlib.Path,
    schema: type[Schema],
    bad_rows: BadRows,
    *,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for a file of JSON lines, a table of strings, or Parquet, whose rows are counted as lines.

    Args:
      delimiter: Separator of a table's fields; None: by the name's ending, .csv, .tsv, .parquet, else JSON lines.
      columns: Column names of a table; None: its first line.
    """
    with opened(path) as (content, _):
        rows = parsed_rows(path, content, schema, bad_rows, delimiter=delimiter, columns=columns)
        yield from at_least_one(path, rows, bad_rows)


def parsed_rows(
    path: pathlib.Path,
    content: Iterable[bytes],
    schema: type[Schema],
    bad_rows: BadRows,
    *,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for the lines of an open file, or an open Parquet file; see `read_rows`. It may be empty."""
    suffix = path.name.removesuffix(".gz").removesuffix(".bz2").rpartition(".")[2]
    delimiter = delimiter or {"csv": ",", "tsv": "\t"}.get(suffix)
    # Some editors begin a file with a byte order mark.
    lines = (line if number else line.removeprefix(codecs.BOM_UTF8) for number, line in enumerate(content))
    numbered: Iterable[tuple[int, Any]]
    validate: Callable[[Any], Schema] = schema.model_validate
    if suffix == "parquet":
        numbered = enumerate(parquet_values(content), start=1)
    elif delimiter:
        csv.field_size_limit(_MAX_FIELD_CHARACTERS)
        table = csv.DictReader((line.decode() for line in lines), fieldnames=columns, delimiter=delimiter)
        numbered = _table_rows(path, table, bad_rows)
    else:
        numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
        validate = schema.model_validate_json
    for number, value in numbered:
        if (row := validated(validate, value, path, number, bad_rows)) is not None:
            yield number, row


def parquet_values(content: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of an open Parquet file, some hundreds of which are in memory at a time."""
    for batch in pyarrow.parquet.ParquetFile(content, pre_buffer=False).iter_batches(_ROWS_PER_READ):
        yield from batch.to_pylist()


def _table_rows(path: pathlib.Path, table: csv.DictReader, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (last line of the row, column -> text); wrong quoting or a stray carriage return makes a bad row."""
    while True:
        try:
            for values in table:
                yield table.line_num, {name: value for name, value in values.items() if name}
            return
        except csv.Error as error:
            bad_rows.add(path, table.reader.line_num, "", str(error).partition(" - ")[0])


def list_rows(
    path: pathlib.Path, schema: type[Schema], bad_rows: BadRows, key: str = ""
) -> Iterator[tuple[int, Schema]]:
    """Yields (index from 0, row) for the elements of the JSON list that is a file, or that is under its `key`."""
    content = read_json(path)
    values = content.get(key) if key and isinstance(content, dict) else content
    if not isinstance(values, list):
        raise UserError(f"{path} holds no list{f' under {key}' if key else ''}: is it another file?")
    rows = (
        (number, validated(schema.model_validate, value, path, f"{key or 'element'} {number}", bad_rows))
        for number, value in enumerate(values)
    )
    yield from at_least_one(path, ((number, row) for number, row in rows if row is not None), bad_rows)


def validated(
    validate: Callable[[Any], Schema], value: Any, path: pathlib.Path, place: Place | None, bad_rows: BadRows
) -> Schema | None:
    """Returns a validated row, or None if it is bad."""
    try:
        return validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        problem = "input should be an object" if first["type"] == "model_type" else first["msg"]
        bad_rows.add(path, place, ".".join(map(str, first["loc"])), problem[:1].lower() + problem[1:])
        return None


def at_least_one(path: pathlib.Path, rows: Iterable[Item], bad_rows: BadRows) -> Iterator[Item]:
    """Yields the rows of a file. A file without one, of another kind, is refused even if bad rows are skipped."""
    empty, before = True, len(bad_rows.problems)
    for row in rows:
        empty = False
        yield row
    if empty:
        problem = (*bad_rows.problems[before:], "the file is empty")[0]
        raise UserError(f"no row of {path} can be used: {problem}")


def first_of_each_id(
    path: pathlib.Path,
    rows: Iterable[tuple[Any, Item]],
    id_of: Callable[[Item], Hashable],
    field: str,
    bad_rows: BadRows,
) -> Iterator[tuple[Any, Item]]:
    """Yields the (place, row) pairs whose id occurs for the first time; the others are bad rows."""
    seen: set[Hashable] = set()
    for place, row in rows:
        if (identity := id_of(row)) in seen:
            bad_rows.add(path, place, field, f"{identity} is already used by an earlier row")
        else:
            seen.add(identity)
            yield place, row
