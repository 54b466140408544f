"""Finds data files and reads their rows, validated one by one: JSON lines, JSON lists, tables, Parquet, SQuAD and TREC.

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
import io
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import gin
import pyarrow
import pyarrow.parquet
import pydantic
import pydantic_core

from lcrag.data.questions import LANGUAGES, Question, fault_of
from lcrag.errors import AbsentError, UserError, typed
from lcrag.files import local_files
from lcrag.retrieval.passages import Passage

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


def read_rows(path: pathlib.Path, schema: type[Schema], bad_rows: BadRows) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for a file of JSON lines, a table (.csv, .tsv), or Parquet, whose rows are lines."""
    with opened(path) as (content, _):
        yield from at_least_one(path, parsed_rows(path, content, schema, bad_rows), bad_rows)


def parsed_rows(
    path: pathlib.Path, content: Iterable[bytes], schema: type[Schema], bad_rows: BadRows
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for the lines of an open file, or an open Parquet file; see `read_rows`. It may be empty."""
    suffix = path.name.removesuffix(".gz").removesuffix(".bz2").rpartition(".")[2]
    # Some editors begin a file with a byte order mark.
    lines = (line if number else line.removeprefix(codecs.BOM_UTF8) for number, line in enumerate(content))
    numbered: Iterable[tuple[int, Any]]
    validate: Callable[[Any], Schema] = schema.model_validate
    if suffix == "parquet":
        numbered = enumerate(parquet_values(content), start=1)
    elif suffix in ("csv", "tsv"):
        csv.field_size_limit(_MAX_FIELD_CHARACTERS)
        table = csv.DictReader((line.decode() for line in lines), delimiter="," if suffix == "csv" else "\t")
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


# --- Questions of one's own ---


class JsonlRow(Row):
    """One line; unknown fields are errors, which catches misspelt ones.

    {"id": "1", "language": "fi", "question": "Missä on Tšad?", "answers": ["Afrikassa"]}
    {"id": "1", "language": "en", "question": "Where is Chad?", "answers": ["in Africa"], "extra": {"difficulty": 1}}

    Rows with the same id are versions of one question and form a coupled group.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    id: Text | int
    language: Text
    question: Text
    answers: Annotated[list[Text], pydantic.Field(min_length=1)]
    extra: dict[str, Any] = {}


@gin.configurable
@typed
def jsonl_questions(
    files: Sequence[str | pathlib.Path], dataset: str = "jsonl", languages: Sequence[str] | None = None
) -> list[Question]:
    """Returns the questions of some files unchanged: no question mark is appended, and no question is left out.

    Args:
      files: Files of JSON lines, plain or gzipped, also in an object store.
      languages: Languages to keep; None: all.
    """
    questions: list[Question] = []
    places: dict[tuple[str, str], str] = {}
    with counted_bad_rows() as bad_rows:
        for path in map(local_files, files):
            for line, row in read_rows(path, JsonlRow, bad_rows):
                key = (str(row.id), row.language)
                if row.language not in LANGUAGES:
                    known = " ".join(LANGUAGES)
                    bad_rows.add(path, line, "language", f"unknown language {row.language!r}, not one of {known}")
                elif key in places:
                    bad_rows.add(path, line, "id", f"{row.id} in {row.language} is also at {places[key]}")
                else:
                    places[key] = f"{path}, line {line}"
                    answers = tuple(dict.fromkeys(row.answers))
                    names = {"id": str(row.id), "dataset": dataset, "language": row.language}
                    questions.append(Question(**names, text=row.question, answers=answers, extra=dict(row.extra)))
    kept = [question for question in questions if languages is None or question.language in languages]
    if not kept:
        found = " ".join(dict.fromkeys(question.language for question in questions)) or "none"
        raise UserError(
            f"no question of {dataset} is left: the files {list(map(str, files))} have languages {found}, and wanted"
            f" are {'all' if languages is None else ' '.join(languages)}; name other files or languages"
        )
    return kept


def question_row(
    question: Question, *, identity: str | None = None, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the line of a question, which `jsonl_questions` reads back.

    Args:
      identity: The row's id; None: the question's.
      extra: Entries to add to the question's `extra`.
    """
    return {
        "id": question.id if identity is None else identity,
        "language": question.language,
        "question": question.text,
        "answers": list(question.answers),
        "extra": question.extra | dict(extra or {}),
    }


# --- SQuAD 1.1 ---

# Some texts begin with a byte order mark.
_Clean = Annotated[Text, pydantic.AfterValidator(lambda text: text.removeprefix("\ufeff").strip())]


class _Answer(Row):
    text: _Clean


class SquadQuestion(Row):
    """A question with its answers."""

    id: Text
    question: _Clean
    answers: Annotated[list[_Answer], pydantic.Field(min_length=1)]

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct answers."""
        return tuple(dict.fromkeys(answer.text for answer in self.answers))


class _Paragraph(Row):
    context: _Clean
    qas: list[Any]  # validated one by one, so that a bad question does not lose the others


class _Article(Row):
    title: Text
    paragraphs: list[_Paragraph]


class _File(Row):
    data: list[Any]


class SquadParagraph(NamedTuple):
    """A paragraph and its questions; translations of a paragraph have the same passage id."""

    passage: Passage
    questions: list[SquadQuestion]


def read_squad(path: pathlib.Path, bad_rows: BadRows) -> list[SquadParagraph]:
    """Returns the paragraphs of a file, in order."""
    content = validated(_File.model_validate, read_json(path), path, None, bad_rows)
    paragraphs: list[SquadParagraph] = []
    seen: set[str] = set()
    for a, value in enumerate(content.data if content else ()):
        article = validated(_Article.model_validate, value, path, f"data.{a}", bad_rows)
        if article is None:
            continue
        title = article.title.replace("_", " ")
        for p, paragraph in enumerate(article.paragraphs):
            questions = []
            for q, row in enumerate(paragraph.qas):
                place = f"data.{a}.paragraphs.{p}.qas.{q}"
                question = validated(SquadQuestion.model_validate, row, path, place, bad_rows)
                if question and question.id in seen:
                    bad_rows.add(path, place, "id", f"{question.id} is already used by an earlier question")
                elif question:
                    seen.add(question.id)
                    questions.append(question)
            passage = Passage(id=f"{title}/{p}", title=title, text=paragraph.context)
            paragraphs.append(SquadParagraph(passage, questions))
    return paragraphs


# --- Judged queries ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedQuery:
    """A query with its judged passages."""

    id: str
    language: str  # of the query and of the collection
    text: str
    grades: Mapping[str, int]  # passage id -> grade; above 0 means relevant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgements:
    """The judged queries of a split of a data set."""

    dataset: str
    split: str
    queries: tuple[JudgedQuery, ...]


def read_trec(topics: pathlib.Path, qrels: pathlib.Path, language: str, bad_rows: BadRows) -> list[JudgedQuery]:
    """Reads the judged queries of a language from MIRACL's or Mr. TyDi's files, plain or gzipped.

    Args:
      topics: Lines of `query id<TAB>query`.
      qrels: Lines of `query id, Q0, passage id, grade`, separated by white space.
    """
    texts: dict[str, str] = {}
    for number, line in enumerate(read_text(topics).split("\n"), start=1):
        key, tab, text = line.partition("\t")
        if not line.strip():
            continue
        if not tab or not key.strip() or not text.strip():
            bad_rows.add(topics, number, "query", "expected a query's id, a tab and the query")
        else:
            texts[key.strip()] = text.strip()
    grades: dict[str, dict[str, int]] = {key: {} for key in texts}
    for number, line in enumerate(read_text(qrels).split("\n"), start=1):
        match line.split():
            case []:
                continue
            case [key, _, _, _] if key not in texts:
                bad_rows.add(qrels, number, "query id", f"{topics.name} has no query {key}")
            case [key, _, passage, grade] if grade.lstrip("-").isdecimal():
                grades[key][passage] = int(grade)
            case _:
                bad_rows.add(qrels, number, "", "expected a query's id, Q0, a passage's id and a whole number")
    return [JudgedQuery(id=key, language=language, text=text, grades=grades[key]) for key, text in texts.items()]


def judged_questions(questions: Sequence[Question], split: str) -> Judgements:
    """Returns questions with gold passages as judged queries: XQuAD's have one passage, multi-hop questions several."""
    if not questions:
        raise UserError("there are no questions to evaluate retrieval with: choose another split or other languages")
    queries = []
    for question in questions:
        single = question.extra.get("passage")
        if not (golds := [single] if single else question.extra.get("supports", [])):
            where = f"question {question.id} of {question.dataset}"
            raise UserError(f"{where} names no gold passage: judge retrieval by questions that do, such as XQuAD's")
        grades = dict.fromkeys(golds, 1)
        queries.append(JudgedQuery(id=question.id, language=question.language, text=question.text, grades=grades))
    return Judgements(dataset=questions[0].dataset, split=split, queries=tuple(queries))
