"""What a row of an English question set becomes: a question, and the paragraphs that come with it."""

import csv
import dataclasses
import hashlib
import io
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import pydantic

from lcrag.data.json_places import elements_in_json
from lcrag.data.questions import Question, with_question_mark
from lcrag.data.rows import BadRows, Schema, first_problem, read_text
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

LANGUAGE = "en"


def distinct(texts: Iterable[str]) -> list[str]:
    """The texts that say something, each once, without white space around it."""
    return list(dict.fromkeys(filter(None, map(str.strip, texts))))


def _telling(texts: list[str]) -> list[str]:
    if not (kept := distinct(texts)):
        raise ValueError("no answer says anything")
    return kept


# Golden answers; blank ones are dropped, but one must be left.
Answers = Annotated[list[str], pydantic.AfterValidator(_telling)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with its set's own paragraphs, none where the set has none.

    `question.extra` holds what the set tells of it: `type` (comparison, bridge, 2hop, ...), `supports` (ids of the
    paragraphs that answer it), `supporting_facts` ([title, number of the sentence from 0], ...), `evidences` (triples),
    `decomposition` ([{"question", "answer", "support"}, ...], `#1` standing for the first answer), and so on.
    """

    question: Question
    passages: tuple[Passage, ...] = ()


# (file, what becomes of bad rows) -> (line, what was asked) of each row
Reader: TypeAlias = Callable[[pathlib.Path, BadRows], Iterator[tuple[int, Asked]]]


def asked(identity: str, text: str, answers: Iterable[str], passages: Sequence[Passage] = (), **extra: Any) -> Asked:
    """A question of a set that is named later; what of `extra` is empty is left out."""
    told = {name: value for name, value in extra.items() if value not in (None, "", [])}
    question = Question(
        id=identity,
        dataset="",
        language=LANGUAGE,
        text=with_question_mark(text),
        answers=tuple(answers),
        extra=told,
    )
    return Asked(question=question, passages=tuple(passages))


def paragraph(title: str, text: str) -> Passage:
    """A paragraph as a passage; its id is made of its content, so that the same one in many rows is one."""
    title, text = title.strip(), text.strip()
    content = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:12]
    return Passage(id=f"{title}/{content}", title=title, text=text)


def supports_of(passages: Iterable[Passage], titles: Iterable[str]) -> list[str]:
    """Ids of the paragraphs with one of the titles."""
    wanted = {title.strip() for title in titles}
    return [passage.id for passage in passages if passage.title in wanted]


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
