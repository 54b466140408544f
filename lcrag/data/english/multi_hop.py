"""HotpotQA (Yang et al., 2018) and 2WikiMultiHopQA (Ho et al., 2020), whose official files have one form.

https://arxiv.org/abs/1809.09600, https://arxiv.org/abs/2011.01060. A question comes with ten paragraphs, of which two
to four hold the facts that answer it; its type says how they are combined.
"""

import pathlib
from collections.abc import Iterator
from typing import Annotated

import pydantic

from lcrag.data.english.asked import Asked, asked, paragraph, supports_of
from lcrag.data.english.json_lists import list_rows
from lcrag.data.rows import BadRows, Row, Text


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
