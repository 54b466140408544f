"""Open-domain questions without paragraphs: NQ-open, TriviaQA, PopQA, Bamboogle, and DPR's form of the first two.

Natural Questions (Kwiatkowski et al., 2019; Lee et al., 2019: https://arxiv.org/abs/1906.00300), TriviaQA (Joshi et
al., 2017: https://arxiv.org/abs/1705.03551), PopQA (Mallen et al., 2023: https://arxiv.org/abs/2212.10511) and
Bamboogle (Press et al., 2023: https://arxiv.org/abs/2210.03350).
"""

import ast
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pydantic

from lcrag.data.english.asked import Answers, Asked, asked, distinct, list_rows, table_rows
from lcrag.data.rows import BadRows, Row, Text, read_rows


def _parsed(parse: Callable[[str], Any], what: str) -> pydantic.BeforeValidator:
    def parsed(value: Any) -> Any:
        try:
            return parse(value)
        except (ValueError, SyntaxError, TypeError) as error:
            raise ValueError(f"expected {what}") from error

    return pydantic.BeforeValidator(parsed)


class NqRow(Row):
    """One line of NQ-open."""

    question: Text
    answer: Answers


class TriviaAnswer(Row):
    """What TriviaQA accepts."""

    value: Annotated[Text, pydantic.Field(alias="Value")]
    aliases: Annotated[list[str], pydantic.Field(alias="Aliases")] = []


class TriviaRow(Row):
    """An element of TriviaQA's `Data`."""

    id: Annotated[Text, pydantic.Field(alias="QuestionId")]
    question: Annotated[Text, pydantic.Field(alias="Question")]
    answer: Annotated[TriviaAnswer, pydantic.Field(alias="Answer")]


class PopRow(Row):
    """One line of PopQA; `prop` is the relation asked for, `s_pop` the monthly views of the subject's page."""

    id: Text
    question: Text
    possible_answers: Annotated[Answers, _parsed(json.loads, "a JSON list of answers")]
    prop: Text
    s_pop: Annotated[int, _parsed(int, "a number of views")]


class BamboogleRow(Row):
    """One line of Bamboogle."""

    question: Annotated[Text, pydantic.Field(alias="Question")]
    answer: Annotated[Text, pydantic.Field(alias="Answer")]


class DprRow(Row):
    """One line of DPR's files: a question, a tab, and a Python list of answers."""

    question: Text
    answers: Annotated[Answers, _parsed(ast.literal_eval, "a list of answers as Python writes it")]


def read_nq(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of a file of NQ-open; an id is the line."""
    for line, row in read_rows(path, NqRow, bad_rows):
        yield line, asked(str(line), row.question, row.answer)


def read_trivia(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of a file of TriviaQA; its evidence documents are other files and not read."""
    for line, _, row in list_rows(path, TriviaRow, bad_rows, "Data"):
        yield line, asked(row.id, row.question, distinct([row.answer.value, *row.answer.aliases]))


def read_pop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of PopQA; their type is the relation."""
    for line, row in table_rows(path, PopRow, bad_rows):
        yield line, asked(row.id, row.question, row.possible_answers, type=row.prop, popularity=row.s_pop)


def read_bamboogle(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of Bamboogle, as its spreadsheet is exported; an id is the line."""
    for line, row in table_rows(path, BamboogleRow, bad_rows, delimiter=","):
        yield line, asked(str(line), row.question, [row.answer])


def read_dpr(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of DPR's question files (Karpukhin et al., 2020); an id is the line."""
    for line, row in table_rows(path, DprRow, bad_rows, columns=("question", "answers")):
        yield line, asked(str(line), row.question, row.answers)
