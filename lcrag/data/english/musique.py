"""MuSiQue: questions composed of two to four single ones, with their decomposition (Trivedi et al., 2022).

https://arxiv.org/abs/2108.00573; the files are those of MuSiQue-Answerable.
"""

import pathlib
from collections.abc import Iterator, Mapping

from lcrag.data.english.asked import Asked, asked, distinct, paragraph
from lcrag.data.rows import BadRows, Row, Text, read_rows
from lcrag.retrieval.passages import Passage


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
