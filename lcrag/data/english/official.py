"""Multi-hop question sets: HotpotQA, 2WikiMultiHopQA, Bamboogle, MuSiQue and WikiHop."""

import ast
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import pydantic

from lcrag.data.english.asked import Answers, Asked, asked, distinct, list_rows, paragraph, supports_of, table_rows
from lcrag.data.rows import BadRows, Row, Text, read_rows
from lcrag.retrieval.passages import Passage


class MultiHopRow(Row):
    """An element of the list; `level` is HotpotQA's, `evidences` (subject, relation, object) are 2WikiMultiHopQA's."""

    id: Annotated[Text, pydantic.Field(alias="_id")]
    question: Text
    answer: Text
    type: Text
    level: str | None = None
    context: list[tuple[Text, list[str]]]
    supporting_facts: list[tuple[Text, int]]
    evidences: list[tuple[str, str, str]] = []


class SimplifiedRow(Row):
    """An element of the list that ReAct made of HotpotQA's development set: no id, no paragraphs."""

    question: Text
    answer: Text
    type: Text


def read_multi_hop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of an official file."""
    for line, _, row in list_rows(path, MultiHopRow, bad_rows):
        passages = [paragraph(title, " ".join(map(str.strip, sentences))) for title, sentences in row.context]
        yield (
            line,
            asked(
                row.id,
                row.question,
                [row.answer],
                passages,
                type=row.type,
                level=row.level,
                supports=supports_of(passages, (title for title, _ in row.supporting_facts)),
                supporting_facts=[list(fact) for fact in row.supporting_facts],
                evidences=[list(triple) for triple in row.evidences],
            ),
        )


def read_simplified(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of a simplified file; an id is the place in the list, from 0."""
    for line, number, row in list_rows(path, SimplifiedRow, bad_rows):
        yield line, asked(str(number), row.question, [row.answer], type=row.type)


class MusiqueParagraph(Row):
    """One of a question's twenty paragraphs."""

    idx: int
    title: str
    paragraph_text: Text


class MusiqueStep(Row):
    """A single question; `#1` in it stands for the first one's answer."""

    question: Text
    answer: Text
    paragraph_support_idx: int | None = None


class MusiqueRow(Row):
    """One line. The kind of composition begins its id: `3hop1__...` is the first of two with three hops."""

    id: Text
    question: Text
    answer: Text
    answer_aliases: list[str] = []
    answerable: bool = True
    paragraphs: list[MusiqueParagraph]
    question_decomposition: list[MusiqueStep]


def read_musique(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The answerable questions of a file; aliases are golden answers as well, as in the official script."""
    for line, row in read_rows(path, MusiqueRow, bad_rows):
        if not row.answerable:
            continue
        passages = {each.idx: paragraph(each.title, each.paragraph_text) for each in row.paragraphs}
        supports = [step.paragraph_support_idx for step in row.question_decomposition]
        if missing := [number for number in supports if number is not None and number not in passages]:
            bad_rows.add(path, line, "question_decomposition", f"there is no paragraph {missing[0]}")
            continue
        steps = [_step(step, passages) for step in row.question_decomposition]
        yield (
            line,
            asked(
                row.id,
                row.question,
                distinct([row.answer, *row.answer_aliases]),
                list(passages.values()),
                type=kind_of(row.id),
                supports=[step["support"] for step in steps if step["support"]],
                decomposition=steps,
            ),
        )


def kind_of(identity: str) -> str:
    """The kind of composition that an official id names; empty where it names none."""
    kind, mark, _ = identity.partition("__")
    return kind if mark else ""


def _step(step: MusiqueStep, passages: Mapping[int, Passage]) -> dict[str, str | None]:
    number = step.paragraph_support_idx
    return {
        "question": step.question,
        "answer": step.answer,
        "support": passages[number].id if number is not None else None,
    }


class WikiHopRow(Row):
    """An element of the list."""

    id: Text
    query: Text
    answer: Text
    candidates: list[str]
    supports: list[Text]


def read_wikihop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The queries of a file as questions: "What is the country of citizenship of juan rossell?".

    Its paragraphs have no titles, and nothing says which of them are needed.
    """
    for line, number, row in list_rows(path, WikiHopRow, bad_rows):
        relation, space, subject = row.query.partition(" ")
        if not space:
            bad_rows.add(path, line, f"{number}.query", "expected a relation, a space and a subject")
            continue
        name = relation.replace("_", " ")
        yield (
            line,
            asked(
                row.id,
                f"What is the {name} of {subject}?",
                [row.answer],
                [paragraph("", text) for text in row.supports],
                relation=name,
                subject=subject,
                candidates=list(row.candidates),
            ),
        )


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
