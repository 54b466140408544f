"""Any question set as others publish it: FlashRAG, KILT, and SimpleDeepSearcher.

FlashRAG (Jin et al., 2024: https://arxiv.org/abs/2405.13576) has a JSON object a line, `{"id", "question",
"golden_answers", "metadata"}`; KILT (Petroni et al., 2021: https://arxiv.org/abs/2009.02252) `{"id", "input",
"output"}`; SimpleDeepSearcher one JSON list of `{"id", "Question", "answer", "source"}`.
"""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import pydantic

from lcrag.data.english.asked import Answers, Asked, asked, distinct, list_rows, paragraph, supports_of
from lcrag.data.rows import BadRows, Row, Text, read_rows
from lcrag.retrieval.passages import Passage


class Facts(Row):
    """Supporting facts by columns."""

    title: list[str]
    sent_id: list[int] = []


class Context(Row):
    """Paragraphs by columns; a set calls its sentences one or the other."""

    title: list[str]
    sentences: list[list[str]] | None = None
    content: list[list[str]] | None = None


class SupportParagraph(Row):
    """The paragraph that answers a step."""

    title: str
    paragraph_text: Text


class Step(Row):
    """A single question of MuSiQue's."""

    question: Text
    answer: Text
    support_paragraph: SupportParagraph | None = None


def _known(value: Any, check: Callable[[Any], Any]) -> Any:
    try:
        return check(value)
    except pydantic.ValidationError:
        return None


_Known = pydantic.WrapValidator(_known)


class Metadata(Row):
    """What FlashRAG keeps of a set. Every set has its own: what has not one of these forms is left out."""

    type: Annotated[str | None, _Known] = None
    level: Annotated[str | None, _Known] = None
    prop: Annotated[str | None, _Known] = None
    supporting_facts: Annotated[Facts | None, _Known] = None
    context: Annotated[Context | None, _Known] = None
    question_decomposition: Annotated[list[Step] | None, _Known] = None


class FlashRagRow(Row):
    """One line of FlashRAG's."""

    id: Text
    question: Text
    golden_answers: Answers
    metadata: Metadata | None = None


class Provenance(Row):
    """Where KILT found an answer."""

    title: str | None = None


class Output(Row):
    """One of KILT's answers; one without a text only names another page."""

    answer: str | None = None
    provenance: list[Provenance] = []


class KiltRow(Row):
    """One line of KILT's. TriviaQA's rows have no `input` until KILT's script has added it."""

    id: Text
    input: Text
    output: list[Output]


class SearcherRow(Row):
    """An element of SimpleDeepSearcher's list."""

    id: Text
    question: Annotated[Text, pydantic.Field(alias="Question")]
    answer: Answers


def read_flashrag(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of a file of FlashRAG's, with the paragraphs and facts that its metadata keep."""
    for line, row in read_rows(path, FlashRagRow, bad_rows):
        told = row.metadata or Metadata()
        facts, steps = told.supporting_facts or Facts(title=[]), [_step(step) for step in _steps(told)]
        passages = _passages(told)
        supports = supports_of(passages, facts.title) or [step["support"] for step in steps if step["support"]]
        yield (
            line,
            asked(
                row.id,
                row.question,
                row.golden_answers,
                passages,
                type=told.type or told.prop,
                level=told.level,
                supports=supports,
                supporting_facts=[list(fact) for fact in zip(facts.title, facts.sent_id, strict=False)],
                decomposition=steps,
            ),
        )


def read_kilt(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of a file of KILT's; `extra["pages"]` are titles of the pages that answer them."""
    for line, row in read_rows(path, KiltRow, bad_rows):
        if not (golds := distinct(output.answer or "" for output in row.output)):
            bad_rows.add(path, line, "output", "no answer says anything")
            continue
        pages = distinct(place.title or "" for output in row.output for place in output.provenance)
        yield line, asked(row.id, row.input, golds, pages=pages)


def read_searcher(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The questions of a file of SimpleDeepSearcher's."""
    for line, _, row in list_rows(path, SearcherRow, bad_rows):
        yield line, asked(row.id, row.question, row.answer)


def _passages(told: Metadata) -> list[Passage]:
    """The paragraphs of the context, or of the steps where there is none."""
    if told.context is not None:
        sentences = told.context.sentences or told.context.content or []
        pairs = zip(told.context.title, sentences, strict=False)
        return [paragraph(title, " ".join(map(str.strip, texts))) for title, texts in pairs]
    found = (step.support_paragraph for step in _steps(told))
    return [paragraph(each.title, each.paragraph_text) for each in found if each]


def _steps(told: Metadata) -> list[Step]:
    return told.question_decomposition or []


def _step(step: Step) -> Mapping[str, Any]:
    support = step.support_paragraph
    identity = paragraph(support.title, support.paragraph_text).id if support else None
    return {"question": step.question, "answer": step.answer, "support": identity}
