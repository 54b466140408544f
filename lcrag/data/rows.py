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
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import gin
import pyarrow
import pyarrow.parquet
import pydantic
import pydantic_core

from lcrag.data.questions import LANGUAGES, Question, fault_of, trimmed
from lcrag.errors import AbsentError, UserError, first_problem, typed
from lcrag.files import local_files
from lcrag.retrieval.passages import Passage

Schema = TypeVar("Schema", bound=pydantic.BaseModel)
Item = TypeVar("Item")
Place: TypeAlias = int | str  # of a row in its file: its line, from 1, or words

ENVIRONMENT = "LCRAG_DATA"
_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')  # a field of a table
_GRADE = re.compile("-?[0-9]{1,9}")
_MAX_FIELD_CHARACTERS = 1 << 27  # of a table; the standard library stops at 131,072
_ROWS_PER_READ = 256  # of Parquet files, whose row groups may hold a gigabyte


def usable(text: str) -> str:
    """Returns a trimmed text; raises an error of validation for one that is invisible or has control characters."""
    if fault := fault_of(text := trimmed(text)):
        raise pydantic_core.PydanticCustomError("text", "the text {fault}", {"fault": fault})
    return text


# A text with a visible character and no control characters, without white space or byte order marks around it.
Text = Annotated[str, pydantic.AfterValidator(usable)]


class Row(pydantic.BaseModel):
    """Base class of schemas: values are not converted, unknown fields are ignored, and null is as an absent field."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        """Parquet has no absent fields, nor have rows that were joined in a table."""
        return {name: of for name, of in value.items() if of is not None} if isinstance(value, dict) else value


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
    files = local_files(folder if folder is not None else f"{os.environ[ENVIRONMENT]}/{dataset}")
    if not files.is_dir():
        raise AbsentError(f"there is no folder {files} with the files of {dataset}: see docs/data.md for the downloads")
    return files


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

    The content is after a byte order mark, with which some editors begin a file. Within the block, damaged content and
    text that is not UTF-8 become a `UserError` that names the file.
    """
    try:
        with path.open("rb") as stored:
            content = _OPENERS.get(path.suffix, lambda file: file)(stored)
            beginning = content.peek(3)
            if beginning.startswith(codecs.BOM_UTF8):
                content.read(len(codecs.BOM_UTF8))
            elif beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise UserError(f"{path} is UTF-16: save it as UTF-8")
            yield content, stored
    except FileNotFoundError as error:
        raise AbsentError(f"there is no file {path}") from error
    except (EOFError, zlib.error, OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): download it again, or save it as UTF-8") from error


def read_text(path: pathlib.Path) -> str:
    """Returns the text of a file, without a byte order mark."""
    with opened(path) as (content, _):
        return content.read().decode()


def numbered_lines(path: pathlib.Path, content: Iterable[bytes], bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text without its end) for the lines of an open file; one that is not UTF-8 is a bad row.

    A byte order mark at the beginning of any line is dropped: files that begin with one may have been joined.
    """
    for number, line in enumerate(content, start=1):
        try:
            yield number, line.decode().removeprefix("\ufeff").rstrip("\r\n")
        except UnicodeDecodeError:
            bad_rows.add(path, number, "", "the line is not UTF-8")


def read_json(path: pathlib.Path) -> Any:
    """Returns the value in a JSON file."""
    try:
        return pydantic_core.from_json(read_text(path), allow_inf_nan=False)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}): correct it, or download it again") from error


def read_rows(
    path: pathlib.Path, schema: type[Schema], bad_rows: BadRows, unique: str = ""
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for a file of JSON lines, a table (.csv, .tsv), or Parquet, whose rows are lines.

    A row whose field `unique` has the value of an earlier row is bad.
    """
    seen: set[Hashable] = set()
    with opened(path) as (content, _):
        for line, row in at_least_one(path, parsed_rows(path, content, schema, bad_rows), bad_rows):
            if unique and getattr(row, unique) in seen:
                bad_rows.add(path, line, unique, f"{getattr(row, unique)} is already used by an earlier row")
                continue
            if unique:
                seen.add(getattr(row, unique))
            yield line, row


def parsed_rows(
    path: pathlib.Path, content: Iterable[bytes], schema: type[Schema], bad_rows: BadRows
) -> Iterator[tuple[int, Schema]]:
    """Yields (line, row) for the lines of an open file, or an open Parquet file; see `read_rows`. It may be empty."""
    suffix = path.name.removesuffix(".gz").removesuffix(".bz2").rpartition(".")[2]
    values: Iterable[tuple[int, Any]]
    if suffix == "parquet":
        batches = pyarrow.parquet.ParquetFile(content, pre_buffer=False).iter_batches(_ROWS_PER_READ)
        values = enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    elif suffix in ("csv", "tsv"):
        values = _table_rows(path, numbered_lines(path, content, bad_rows), suffix, bad_rows)
    else:
        values = numbered_lines(path, content, bad_rows)
    for number, value in values:
        if isinstance(value, str) and not value.strip():
            continue
        validate = schema.model_validate_json if isinstance(value, str) else schema.model_validate
        if (row := validated(validate, value, path, number, bad_rows)) is not None:
            yield number, row


def _table_rows(
    path: pathlib.Path, lines: Iterator[tuple[int, str]], kind: str, bad_rows: BadRows
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (first line of the row, column -> text) for a table whose first line names the columns.

    A row that cannot be separated into the columns is bad, and reading continues at the line after its first: the lines
    after a quotation mark that is never closed are rows of their own.
    """
    csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    columns: list[str] = []
    again: collections.deque[tuple[int, str]] = collections.deque()  # lines that a bad row took
    after_bad = False
    while True:
        taken: list[tuple[int, str]] = []

        def take(taken: list[tuple[int, str]] = taken) -> Iterator[str]:
            while line := again.popleft() if again else next(lines, None):
                taken.append(line)
                yield line[1] + "\n"

        rows = csv.reader(take(), strict=True) if kind == "csv" else map(_tab_separated, take())
        try:
            if (fields := next(rows, None)) is None:
                return
            if after_bad and kind == "tsv" and taken[0][1].partition("\t")[0].count('"') % 2:
                raise csv.Error("the row ends a quoted text that an earlier line begins: write it on one line")
            if columns and fields and len(fields) != len(columns):
                raise csv.Error(f"the row has {len(fields)} columns, and the table {len(columns)}")
        except csv.Error as error:
            bad_rows.add(path, taken[0][0], "", str(error).partition(" - ")[0])
            again.extendleft(reversed(taken[1:]))
            after_bad = True
            continue
        after_bad = after_bad and not fields
        if not columns:
            columns = [name.strip() for name in fields]
            if twice := [name for name in columns if name and columns.count(name) > 1]:
                raise UserError(f"{path}, line {taken[0][0]}: two columns are called {twice[0]}: rename one")
        elif fields:
            yield taken[0][0], {name: text for name, text in zip(columns, fields, strict=True) if name}


def _tab_separated(line: str) -> list[str]:
    """Returns the fields of a line of a TSV table; none if it is blank.

    A field may be quoted as in CSV, but is on one line and holds no tab. One that only begins with a quotation mark is
    text (`"Heroes" is a song`), if it has as many closing marks as opening ones.
    """
    line = line.removesuffix("\n")
    if "\r" in line:
        raise csv.Error("the row holds a carriage return")
    fields = line.split("\t") if line.strip() else []
    for place, text in enumerate(fields):
        if text.startswith('"') and text.count('"') % 2:
            raise csv.Error(
                f"column {place + 1} begins with a quotation mark that is not closed before the next tab or line break:"
                " write each mark of the text twice, and one before and after it"
            )
        if quoted := _QUOTED.fullmatch(text):
            fields[place] = quoted[1].replace('""', '"')
    return fields


def list_rows(
    path: pathlib.Path, schema: type[Schema], bad_rows: BadRows, key: str = ""
) -> Iterator[tuple[Place, Schema]]:
    """Yields (place, row) for the elements of the JSON list that is a file, or that is under its `key`.

    The file may also have JSON lines, as many tools write it under the same name.
    """
    try:
        content = read_json(path)
    except UserError as error:
        if "trailing characters" not in str(error.__cause__):  # after the first line's object
            raise
        yield from read_rows(path, schema, bad_rows)
        return
    values = content.get(key) if key and isinstance(content, dict) else content
    if not isinstance(values, list):
        raise UserError(f"{path} holds no list{f' under {key}' if key else ''}: is it another file?")
    placed = ((f"{key or 'element'} {number}", value) for number, value in enumerate(values))
    rows = ((place, validated(schema.model_validate, value, path, place, bad_rows)) for place, value in placed)
    yield from at_least_one(path, ((place, row) for place, row in rows if row is not None), bad_rows)


def validated(
    validate: Callable[[Any], Schema], value: Any, path: pathlib.Path, place: Place | None, bad_rows: BadRows
) -> Schema | None:
    """Returns a validated row, or None if it is bad."""
    try:
        return validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        problem = "input should be an object" if first["type"] == "model_type" else first["msg"]
        problem = problem[:1].lower() + problem[1:].replace(" at line 1 column", " at column")  # of a line of JSON
        bad_rows.add(path, place, ".".join(map(str, first["loc"])), problem)
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

    @pydantic.field_validator("extra")
    @classmethod
    def _names_are_texts(cls, extra: dict[str, Any]) -> dict[str, Any]:
        for name in ("type", "domain", "tier"):  # which name subsets of an evaluation
            if not isinstance(extra.get(name) or "", str):
                raise ValueError(f"{name} is {extra[name]!r}: write a text")
        return extra


@gin.configurable
@typed
def jsonl_questions(
    files: Sequence[str | pathlib.Path], dataset: str = "jsonl", languages: Sequence[str] | None = None
) -> list[Question]:
    """Returns the questions of files of JSON lines, unchanged: no question mark is appended, and none is left out."""
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
        present = " ".join(dict.fromkeys(question.language for question in questions)) or "none"
        raise UserError(
            f"no question of {dataset} is left: the files {list(map(str, files))} have languages {present}, and wanted"
            f" are {'all' if languages is None else ' '.join(languages)}; name other files or languages"
        )
    return kept


def question_row(question: Question, *, identity: str | None = None) -> dict[str, Any]:
    """Returns the line of a question, which `jsonl_questions` reads back; `identity` is an id other than its own."""
    return {
        "id": question.id if identity is None else identity,
        "language": question.language,
        "question": question.text,
        "answers": list(question.answers),
        "extra": question.extra,
    }


# --- SQuAD 1.1 ---


class _Answer(Row):
    text: Text


class SquadQuestion(Row):
    """A question with its answers."""

    id: Text
    question: Text
    answers: list[_Answer]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(answer.text for answer in self.answers))


class _Paragraph(Row):
    context: Text
    qas: list[SquadQuestion] = []


class _Article(Row):
    title: Text | None = None
    paragraphs: list[_Paragraph]


class _File(Row):
    data: list[_Article]


def read_squad(path: pathlib.Path) -> list[tuple[Passage, list[SquadQuestion]]]:
    """Returns the paragraphs of a file with their questions, in order; those of SQuAD 2.0 without answers are left out.

    Translations of a paragraph have the same passage id. Any mistake is a UserError.
    """
    try:
        articles = _File.model_validate(read_json(path)).data
    except pydantic.ValidationError as error:
        raise UserError(f"{path} has a mistake in {first_problem(error)}; correct it, or download it again") from error
    paragraphs = []
    for number, article in enumerate(articles):
        title = (article.title or "").replace("_", " ")
        for place, paragraph in enumerate(article.paragraphs):
            passage = Passage(id=f"{title or number}/{place}", title=title, text=paragraph.context)
            paragraphs.append((passage, [question for question in paragraph.qas if question.answers]))
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

    A line may occur twice; a second text of a query, or grade of a passage, is a bad row.

    Args:
      topics: Lines of `query id<TAB>query`.
      qrels: Lines of `query id, Q0, passage id, grade`, separated by white space.
    """
    texts: dict[str, str] = {}
    for number, line in read_lines(topics, bad_rows):
        key, _, text = map(trimmed, line.partition("\t"))
        if not key or not text or "\t" in text:
            bad_rows.add(topics, number, "query", "expected a query's id, a tab and the query")
        elif fault := fault_of(text):
            bad_rows.add(topics, number, "query", f"the text {fault}")
        elif texts.setdefault(key, text) != text:
            bad_rows.add(topics, number, "query id", f"{key} has another query on an earlier line")
    grades: dict[str, dict[str, int]] = {key: {} for key in texts}
    for number, line in read_lines(qrels, bad_rows):
        match line.split():
            case [key, _, _, _] if key not in texts:
                bad_rows.add(qrels, number, "query id", f"{topics.name} has no query {key}")
            case [key, _, passage, grade] if _GRADE.fullmatch(grade):
                if grades[key].setdefault(passage, int(grade)) != int(grade):
                    problem = f"{passage} has another grade for query {key} on an earlier line"
                    bad_rows.add(qrels, number, "grade", problem)
            case _:
                bad_rows.add(qrels, number, "", "expected a query's id, Q0, a passage's id and a whole number")
    for path, kept in ((topics, bool(texts)), (qrels, any(grades.values()))):
        if not kept:
            raise UserError(f"no row of {path} can be used: {(*bad_rows.problems[-1:], 'the file is empty')[0]}")
    return [JudgedQuery(id=key, language=language, text=text, grades=grades[key]) for key, text in texts.items()]


def read_lines(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    """Yields (number, text) for the lines of a file that are not blank."""
    with opened(path) as (content, _):
        yield from ((number, text) for number, text in numbered_lines(path, content, bad_rows) if text.strip())


def question_judgements(questions: Sequence[Question], split: str) -> Judgements:
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
