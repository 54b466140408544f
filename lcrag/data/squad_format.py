"""Files in the format of SQuAD 1.1: articles of paragraphs with questions."""

import dataclasses
import pathlib
from typing import Annotated, Any

import pydantic

from lcrag.data.rows import BadRows, Row, Text, read_json, validated
from lcrag.retrieval.passages import Passage


class _Answer(Row):
    text: Text


class _Question(Row):
    id: Text
    question: Text
    answers: Annotated[list[_Answer], pydantic.Field(min_length=1)]


class _Paragraph(Row):
    context: Text
    qas: list[Any]  # validated one by one, so that a bad question does not lose the others


class _Article(Row):
    title: Text
    paragraphs: list[_Paragraph]


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
      UserError: the file is not JSON, or an article or a question of it is bad and bad rows are not skipped.
    """
    content = validated(_File.model_validate, read_json(path), path, None, bad_rows)
    paragraphs: list[SquadParagraph] = []
    seen: set[str] = set()
    for a, value in enumerate(content.data if content else ()):
        article = validated(_Article.model_validate, value, path, f"data.{a}", bad_rows)
        if article is None:
            continue
        for p, paragraph in enumerate(article.paragraphs):
            questions = []
            for q, row in enumerate(paragraph.qas):
                place = f"data.{a}.paragraphs.{p}.qas.{q}"
                question = validated(_Question.model_validate, row, path, place, bad_rows)
                if question and question.id in seen:
                    bad_rows.add(path, place, "id", f"{question.id} is already used by an earlier question")
                elif question:
                    seen.add(question.id)
                    answers = tuple(dict.fromkeys(_clean(answer.text) for answer in question.answers))
                    questions.append(SquadQuestion(id=question.id, text=_clean(question.question), answers=answers))
            title, text = article.title.replace("_", " "), _clean(paragraph.context)
            paragraphs.append(SquadParagraph(title=title, number=p, text=text, questions=tuple(questions)))
    return paragraphs


def _clean(text: str) -> str:
    return text.removeprefix("\ufeff").strip()
