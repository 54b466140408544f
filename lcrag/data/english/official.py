"""The official formats of the English question sets.

Multi-hop: HotpotQA, 2WikiMultiHopQA, MuSiQue and WikiHop. Open-domain, without paragraphs: Natural Questions
(Kwiatkowski et al., 2019; NQ-open: Lee et al., 2019: https://arxiv.org/abs/1906.00300), TriviaQA (Joshi et al., 2017:
https://arxiv.org/abs/1705.03551), PopQA (Mallen et al., 2023: https://arxiv.org/abs/2212.10511), Bamboogle (Press et
al., 2023: https://arxiv.org/abs/2210.03350), and DPR's form of the first two.
"""

import ast
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import pydantic

from lcrag.data.english.formats import Answers, Asked, asked, distinct, paragraph, supports_of
from lcrag.data.rows import BadRows, Row, Text, list_rows, read_rows
from lcrag.data.tables import table_rows
from lcrag.retrieval.passages import Passage


class MultiHopRow(Row):
    """An element of the list; HotpotQA has `level`, 2WikiMultiHopQA `evidences` (subject, relation, object)."""

    id: Annotated[Text, pydantic.Field(alias="_id")]
    question: Text
    answer: Text
    type: Text
    level: str | None = None
    context: list[tuple[Text, list[str]]]
    supporting_facts: list[tuple[Text, int]]
    evidences: list[tuple[str, str, str]] = []


class SimplifiedRow(Row):
    """An element of ReAct's list of HotpotQA's development set, without id and paragraphs."""

    question: Text
    answer: Text
    type: Text


def read_multi_hop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of an official file."""
    for line, _, row in list_rows(path, MultiHopRow, bad_rows):
        passages = [paragraph(title, " ".join(map(str.strip, sentences))) for title, sentences in row.context]
        question = asked(
            row.id,
            row.question,
            [row.answer],
            passages,
            type=row.type,
            level=row.level,
            supports=supports_of(passages, (title for title, _ in row.supporting_facts)),
            supporting_facts=[list(fact) for fact in row.supporting_facts],
            evidences=[list(triple) for triple in row.evidences],
        )
        yield line, question


def read_simplified(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of a simplified file; an id is the index in the list."""
    for line, number, row in list_rows(path, SimplifiedRow, bad_rows):
        yield line, asked(str(number), row.question, [row.answer], type=row.type)


class MusiqueParagraph(Row):
    idx: int
    title: str
    paragraph_text: Text


class MusiqueStep(Row):
    """A single-hop question; `#1` in it stands for the first one's answer."""

    question: Text
    answer: Text
    paragraph_support_idx: int | None = None


class MusiqueRow(Row):
    """One line. Its id begins with the kind of composition: `3hop1__...` is the first of two with three hops."""

    id: Text
    question: Text
    answer: Text
    answer_aliases: list[str] = []
    answerable: bool = True
    paragraphs: list[MusiqueParagraph]
    question_decomposition: list[MusiqueStep]


def read_musique(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the answerable questions of a file; aliases are golden answers too, as in the official script."""
    for line, row in read_rows(path, MusiqueRow, bad_rows):
        if not row.answerable:
            continue
        passages = {each.idx: paragraph(each.title, each.paragraph_text) for each in row.paragraphs}
        supports = [step.paragraph_support_idx for step in row.question_decomposition]
        if missing := [number for number in supports if number is not None and number not in passages]:
            bad_rows.add(path, line, "question_decomposition", f"there is no paragraph {missing[0]}")
            continue
        steps = [_step(step, passages) for step in row.question_decomposition]
        question = asked(
            row.id,
            row.question,
            distinct([row.answer, *row.answer_aliases]),
            list(passages.values()),
            type=kind_of(row.id),
            supports=[step["support"] for step in steps if step["support"]],
            decomposition=steps,
        )
        yield line, question


def kind_of(identity: str) -> str:
    """Returns the kind of composition that an official id begins with, or an empty string."""
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
    id: Text
    query: Text
    answer: Text
    candidates: list[str]
    supports: list[Text]


def read_wikihop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the queries of a file as questions: "What is the country of citizenship of juan rossell?".

    The paragraphs have no titles, and the supporting ones are not marked.
    """
    for line, number, row in list_rows(path, WikiHopRow, bad_rows):
        relation, space, subject = row.query.partition(" ")
        if not space:
            bad_rows.add(path, line, f"{number}.query", "expected a relation, a space and a subject")
            continue
        name = relation.replace("_", " ")
        question = asked(
            row.id,
            f"What is the {name} of {subject}?",
            [row.answer],
            [paragraph("", text) for text in row.supports],
            relation=name,
            subject=subject,
            candidates=list(row.candidates),
        )
        yield line, question


def _parsed(parse: Callable[[str], Any], what: str) -> pydantic.BeforeValidator:
    def parsed(value: Any) -> Any:
        try:
            return parse(value)
        except (ValueError, SyntaxError, TypeError) as error:
            raise ValueError(f"expected {what}") from error

    return pydantic.BeforeValidator(parsed)


class NqRow(Row):
    question: Text
    answer: Answers


class TriviaAnswer(Row):
    value: Annotated[Text, pydantic.Field(alias="Value")]
    aliases: Annotated[list[str], pydantic.Field(alias="Aliases")] = []


class TriviaRow(Row):
    """An element of TriviaQA's `Data`."""

    id: Annotated[Text, pydantic.Field(alias="QuestionId")]
    question: Annotated[Text, pydantic.Field(alias="Question")]
    answer: Annotated[TriviaAnswer, pydantic.Field(alias="Answer")]


class PopRow(Row):
    """One line of PopQA; `prop` is the relation, `s_pop` the monthly views of the subject's page."""

    id: Text
    question: Text
    possible_answers: Annotated[Answers, _parsed(json.loads, "a JSON list of answers")]
    prop: Text
    s_pop: Annotated[int, _parsed(int, "a number of views")]


class BamboogleRow(Row):
    question: Annotated[Text, pydantic.Field(alias="Question")]
    answer: Annotated[Text, pydantic.Field(alias="Answer")]


class DprRow(Row):
    """One line of DPR's files: a question, a tab, and a Python list of answers."""

    question: Text
    answers: Annotated[Answers, _parsed(ast.literal_eval, "a list of answers as Python writes it")]


def read_nq(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of an NQ-open file; an id is the line number."""
    for line, row in read_rows(path, NqRow, bad_rows):
        yield line, asked(str(line), row.question, row.answer)


def read_trivia(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of a TriviaQA file, without the evidence documents, which are other files."""
    for line, _, row in list_rows(path, TriviaRow, bad_rows, "Data"):
        yield line, asked(row.id, row.question, distinct([row.answer.value, *row.answer.aliases]))


def read_pop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of PopQA; their type is the relation."""
    for line, row in table_rows(path, PopRow, bad_rows):
        yield line, asked(row.id, row.question, row.possible_answers, type=row.prop, popularity=row.s_pop)


def read_bamboogle(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of Bamboogle's exported spreadsheet; an id is the line number."""
    for line, row in table_rows(path, BamboogleRow, bad_rows, delimiter=","):
        yield line, asked(str(line), row.question, [row.answer])


def read_dpr(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of DPR's question files (Karpukhin et al., 2020); an id is the line number."""
    for line, row in table_rows(path, DprRow, bad_rows, columns=("question", "answers")):
        yield line, asked(str(line), row.question, row.answers)
