"""MKQA: 10,000 English questions, translated with their answers into 25 languages (Longpre et al., 2021).

https://arxiv.org/abs/2007.15207. The official file is `mkqa.jsonl.gz`.
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import pydantic

from lcrag.data.batches import take_split
from lcrag.data.languages import LCRL_LANGUAGES, known_languages
from lcrag.data.questions import Question, with_question_mark
from lcrag.data.rows import BadRows, Row, Text, first_of_each_id, read_rows

DATASET = "mkqa"
FILE = "mkqa.jsonl.gz"
SOURCE = "https://github.com/apple/ml-mkqa/raw/main/dataset/mkqa.jsonl.gz"

# All its languages except the two in traditional Chinese.
LANGUAGES = (*LCRL_LANGUAGES, *"da he hu km ms nl no pl sv tr vi".split())
# Our code of a language -> MKQA's, where they differ: simplified Chinese of the mainland.
_OWN_CODES = {"zh": "zh_cn"}
_UNANSWERED = ("unanswerable", "long_answer")


class MkqaAnswer(Row):
    """A golden answer; `text` is null for questions without a short answer."""

    type: Literal[
        "binary", "date", "entity", "long_answer", "number", "number_with_unit", "short_phrase", "unanswerable"
    ]
    text: str | None
    aliases: list[str | None] | None = None


class MkqaRow(Row):
    """One line of the file. Ids are signed 64-bit integers, half of them negative."""

    example_id: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
    queries: dict[str, Text]
    answers: dict[str, list[MkqaAnswer]]


def read_mkqa(path: pathlib.Path, languages: Sequence[str], bad_rows: BadRows) -> dict[str, MkqaRow]:
    """Returns the rows by id, in the file's order; each has all `languages`, with or without answers.

    Raises:
      UserError: a row is bad and bad rows are not skipped.
    """
    complete = _complete_rows(path, languages, bad_rows)
    rows = first_of_each_id(path, complete, lambda row: row.example_id, "example_id", bad_rows)
    return {str(row.example_id): row for _, row in rows}


def _complete_rows(path: pathlib.Path, languages: Sequence[str], bad_rows: BadRows) -> Iterator[tuple[int, MkqaRow]]:
    for line, row in read_rows(path, MkqaRow, bad_rows):
        if missing := _missing_field(row, languages):
            bad_rows.add(path, line, missing, "field required")
        else:
            yield line, row


def mkqa_questions(
    path: pathlib.Path,
    split: str,
    languages: Sequence[str],
    *,
    test: int = 2000,
    validation: int = 500,
    train: int = 1000,
    seed: int = 0,
    answered_in: Sequence[str] = LCRL_LANGUAGES,
    bad_rows: BadRows,
) -> list[Question]:
    """Returns the questions of a split with all language versions adjacent.

    MKQA has no official splits. LcRL (Section 4.1) uses 1,000 questions for training and 2,000 for testing without
    listing them; here the seed chooses them. The seeded order holds the test split first and the training split last:
    fewer training questions are a subset of more, and the test split does not depend on the other sizes. A question is
    in the same split in every language. A question without a short answer in some language (unanswerable, or answered
    by a long passage) is dropped in all.

    Args:
      split: train, validation, test, or all.
      test: Questions of the test split.
      validation: Questions of the validation split.
      train: Questions of the training split.
      answered_in: Languages in which a question must have a short answer, whether or not it is asked in them.

    Raises:
      UserError: an unknown language or split, a bad row, or too few questions.
    """
    wanted = tuple(dict.fromkeys(known_languages((*answered_in, *languages), LANGUAGES)))
    rows = read_mkqa(path, wanted, bad_rows)
    texts = {key: {language: _texts(row, language) for language in wanted} for key, row in rows.items()}
    usable = [key for key, of_row in texts.items() if all(of_row[language] for language in answered_in)]
    sizes = {"test": test, "validation": validation, "train": train}
    chosen = take_split(usable, split, sizes, seed=seed, what="questions of mkqa")
    asked = [key for key in chosen if all(texts[key][language] for language in languages)]
    return [_question(rows[key], language, texts[key][language]) for key in asked for language in languages]


def _missing_field(row: MkqaRow, languages: Sequence[str]) -> str:
    """Returns the first field that a row lacks for one of the languages; empty if there is none."""
    for code in map(_own_code, languages):
        for name, content in (("queries", row.queries), ("answers", row.answers)):
            if code not in content:
                return f"{name}.{code}"
    return ""


def _own_code(language: str) -> str:
    return _OWN_CODES.get(language, language)


def _texts(row: MkqaRow, language: str) -> tuple[str, ...]:
    """Returns the golden answers in a language, each followed by its aliases; empty if one has no short text."""
    answers = row.answers[_own_code(language)]
    if any(answer.type in _UNANSWERED or not (answer.text or "").strip() for answer in answers):
        return ()
    texts = [text.strip() for answer in answers for text in (answer.text, *(answer.aliases or ())) if text]
    return tuple(dict.fromkeys(filter(None, texts)))


def _question(row: MkqaRow, language: str, answers: tuple[str, ...]) -> Question:
    code = _own_code(language)
    return Question(
        id=str(row.example_id),
        dataset=DATASET,
        language=language,
        text=with_question_mark(row.queries[code]),
        answers=answers,
        extra={"answer_type": row.answers[code][0].type},
    )
