"""Files in the format of SQuAD 1.1: articles of paragraphs with questions."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import pydantic

from lcrag.data.rows import BadRows, Row, Text, first_problem, line_in_json, read_text
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

_BYTE_ORDER_MARK = "\ufeff"
_Schema = TypeVar("_Schema", bound=pydantic.BaseModel)


class _Answer(Row):
    text: Text


class _Question(Row):
    id: Text
    question: Text
    answers: Annotated[list[_Answer], pydantic.Field(min_length=1)]


class _Paragraph(Row):
    context: Text
    qas: list[Any]


class _Article(Row):
    title: Text
    paragraphs: list[Any]


class _File(Row):
    data: list[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadQuestion:
    """A question with its distinct answers."""

    id: str
    text: str
    answers: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadParagraph:
    """A paragraph and its questions; `number` is its index in the article."""

    title: str
    number: int
    text: str
    questions: tuple[SquadQuestion, ...]

    @property
    def passage(self) -> Passage:
        """The paragraph as a passage; translations of a paragraph have the same id."""
        return Passage(id=f"{self.title}/{self.number}", title=self.title, text=self.text)


def read_squad(path: pathlib.Path, bad_rows: BadRows) -> list[SquadParagraph]:
    """Returns the paragraphs of a file, in order; byte order marks at the beginning of texts are removed.

    Raises:
      UserError: the file is not JSON, or a part of it is bad and bad rows are not skipped.
    """
    return list(_Parser(path, bad_rows).paragraphs())


class _Parser:
    """Validates one file article by article, paragraph by paragraph and question by question."""

    def __init__(self, path: pathlib.Path, bad_rows: BadRows):
        self._path, self._bad_rows, self._text = path, bad_rows, read_text(path)
        self._seen: set[str] = set()
        try:
            self._content = json.loads(self._text)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg}): download it again") from error

    def paragraphs(self) -> Iterator[SquadParagraph]:
        file = self._checked(_File, self._content, ())
        for a, value in enumerate(file.data if file else ()):
            article = self._checked(_Article, value, ("data", a))
            for p, inner in enumerate(article.paragraphs if article else ()):
                place = ("data", a, "paragraphs", p)
                if article and (paragraph := self._checked(_Paragraph, inner, place)):
                    yield SquadParagraph(
                        title=article.title.replace("_", " "),
                        number=p,
                        text=_clean(paragraph.context),
                        questions=tuple(self._questions(paragraph.qas, place)),
                    )

    def _questions(self, values: list[Any], paragraph: tuple[str | int, ...]) -> Iterator[SquadQuestion]:
        for q, value in enumerate(values):
            place = (*paragraph, "qas", q)
            question = self._checked(_Question, value, place)
            if question and question.id in self._seen:
                self._add(place, "id", f"{question.id} is already used by an earlier question")
            elif question:
                self._seen.add(question.id)
                answers = dict.fromkeys(_clean(answer.text) for answer in question.answers)
                yield SquadQuestion(id=question.id, text=_clean(question.question), answers=tuple(answers))

    def _checked(self, schema: type[_Schema], value: Any, place: tuple[str | int, ...]) -> _Schema | None:
        try:
            return schema.model_validate(value)
        except pydantic.ValidationError as error:
            self._add(place, *first_problem(error))
            return None

    def _add(self, place: tuple[str | int, ...], field: str, problem: str) -> None:
        name = ".".join(map(str, filter(lambda part: part != "", (*place, field))))
        self._bad_rows.add(self._path, line_in_json(self._text, place), name, problem)


def _clean(text: str) -> str:
    return text.removeprefix(_BYTE_ORDER_MARK).strip()
