"""User-provided questions, one JSON object per line.

{"id": "1", "language": "fi", "question": "Missä on Tšad?", "answers": ["Afrikassa"]}
{"id": "1", "language": "en", "question": "Where is Chad?", "answers": ["in Africa"], "extra": {"difficulty": 1}}

Rows with the same id are versions of one question and form a coupled group.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import gin
import pydantic

from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question
from lcrag.data.rows import Row, Text, counted_bad_rows, read_rows
from lcrag.errors import UserError, typed
from lcrag.files import local_files


class JsonlRow(Row):
    """One line; unknown fields are errors, which catches misspelt ones."""

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
