"""Files in the format of SQuAD 1.1: articles of paragraphs with questions."""

import pathlib
from typing import Annotated, Any, NamedTuple

import pydantic

from lcrag.data.rows import BadRows, Row, Text, read_json, validated
from lcrag.retrieval.passages import Passage

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
