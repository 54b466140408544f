"""Questions with paragraphs, and the formats in which other publishers distribute the English question sets.

FlashRAG (Jin et al., 2024: https://arxiv.org/abs/2405.13576) has JSON lines `{"id", "question", "golden_answers",
"metadata"}`; KILT (Petroni et al., 2021: https://arxiv.org/abs/2009.02252) has JSON lines `{"id", "input", "output"}`;
SimpleDeepSearcher has one JSON list of `{"id", "Question", "answer", "source"}`.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import pydantic

from lcrag.data.questions import Question, with_question_mark
from lcrag.data.rows import BadRows, Row, Text, list_rows, read_rows
from lcrag.retrieval.passages import Passage

LANGUAGE = "en"


def distinct(texts: Iterable[str]) -> list[str]:
    """Returns the distinct non-blank texts, stripped."""
    return list(dict.fromkeys(filter(None, map(str.strip, texts))))


def _non_blank(texts: list[str]) -> list[str]:
    if not (kept := distinct(texts)):
        raise ValueError("every answer is blank")
    return kept


# Golden answers without blank ones; at least one must remain.
Answers = Annotated[list[str], pydantic.AfterValidator(_non_blank)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with the paragraphs that its set provides, if any.

    `question.extra` holds the set's annotations: `type` (comparison, bridge, 2hop, ...), `supports` (ids of the
    paragraphs that answer it), `supporting_facts` ([title, number of the sentence from 0], ...), `evidences` (triples),
    `decomposition` ([{"question", "answer", "support"}, ...] with `#1` for the first answer), and so on.
    """

    question: Question
    passages: tuple[Passage, ...] = ()


# (file, handler of bad rows) -> (line, question) of each row
Reader: TypeAlias = Callable[[pathlib.Path, BadRows], Iterator[tuple[int, Asked]]]


def asked(identity: str, text: str, answers: Iterable[str], passages: Sequence[Passage] = (), **extra: Any) -> Asked:
    """Returns a question without a data set name; empty values of `extra` are dropped."""
    annotations = {name: value for name, value in extra.items() if value not in (None, "", [])}
    question = Question(
        id=identity,
        dataset="",
        language=LANGUAGE,
        text=with_question_mark(text),
        answers=tuple(answers),
        extra=annotations,
    )
    return Asked(question=question, passages=tuple(passages))


def paragraph(title: str, text: str) -> Passage:
    """Returns a paragraph as a passage; its id is a hash of its content, so equal paragraphs have one id."""
    title, text = title.strip(), text.strip()
    content = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:12]
    return Passage(id=f"{title}/{content}", title=title, text=text)


def supports_of(passages: Iterable[Passage], titles: Iterable[str]) -> list[str]:
    """Returns the ids of the paragraphs with one of the titles."""
    wanted = {title.strip() for title in titles}
    return [passage.id for passage in passages if passage.title in wanted]


class Facts(Row):
    """Supporting facts as columns."""

    title: list[str]
    sent_id: list[int] = []


class Context(Row):
    """Paragraphs as columns; sets name the sentences `sentences` or `content`."""

    title: list[str]
    sentences: list[list[str]] | None = None
    content: list[list[str]] | None = None


class SupportParagraph(Row):
    title: str
    paragraph_text: Text


class Step(Row):
    """A single-hop question of MuSiQue."""

    question: Text
    answer: Text
    support_paragraph: SupportParagraph | None = None


def _if_valid(value: Any, check: Callable[[Any], Any]) -> Any:
    try:
        return check(value)
    except pydantic.ValidationError:
        return None


_IfValid = pydantic.WrapValidator(_if_valid)


class Metadata(Row):
    """FlashRAG's metadata, which differ between sets; values of other types are ignored."""

    type: Annotated[str | None, _IfValid] = None
    level: Annotated[str | None, _IfValid] = None
    prop: Annotated[str | None, _IfValid] = None
    supporting_facts: Annotated[Facts | None, _IfValid] = None
    context: Annotated[Context | None, _IfValid] = None
    question_decomposition: Annotated[list[Step] | None, _IfValid] = None


class FlashRagRow(Row):
    id: Text
    question: Text
    golden_answers: Answers
    metadata: Metadata | None = None


class Provenance(Row):
    title: str | None = None


class Output(Row):
    """One of KILT's answers; an output without an answer only names another page."""

    answer: str | None = None
    provenance: list[Provenance] = []


class KiltRow(Row):
    """One line of KILT. TriviaQA's rows have no `input` until KILT's script adds it."""

    id: Text
    input: Text
    output: list[Output]


class SearcherRow(Row):
    id: Text
    question: Annotated[Text, pydantic.Field(alias="Question")]
    answer: Answers


def read_flashrag(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of a FlashRAG file with the paragraphs and facts in its metadata."""
    for line, row in read_rows(path, FlashRagRow, bad_rows):
        metadata = row.metadata or Metadata()
        facts, steps = metadata.supporting_facts or Facts(title=[]), [_step(step) for step in _steps(metadata)]
        passages = _passages(metadata)
        supports = supports_of(passages, facts.title) or [step["support"] for step in steps if step["support"]]
        question = asked(
            row.id,
            row.question,
            row.golden_answers,
            passages,
            type=metadata.type or metadata.prop,
            level=metadata.level,
            supports=supports,
            supporting_facts=[list(fact) for fact in zip(facts.title, facts.sent_id, strict=False)],
            decomposition=steps,
        )
        yield line, question


def read_kilt(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of a KILT file; `extra["pages"]` holds the titles of the pages that answer them."""
    for line, row in read_rows(path, KiltRow, bad_rows):
        if not (golds := distinct(output.answer or "" for output in row.output)):
            bad_rows.add(path, line, "output", "every answer is blank")
            continue
        pages = distinct(place.title or "" for output in row.output for place in output.provenance)
        yield line, asked(row.id, row.input, golds, pages=pages)


def read_searcher(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """Yields the questions of a SimpleDeepSearcher file."""
    for line, _, row in list_rows(path, SearcherRow, bad_rows):
        yield line, asked(row.id, row.question, row.answer)


def _passages(metadata: Metadata) -> list[Passage]:
    """Returns the paragraphs of the context or, without one, of the steps."""
    if metadata.context is not None:
        sentences = metadata.context.sentences or metadata.context.content or []
        pairs = zip(metadata.context.title, sentences, strict=False)
        return [paragraph(title, " ".join(map(str.strip, texts))) for title, texts in pairs]
    found = (step.support_paragraph for step in _steps(metadata))
    return [paragraph(each.title, each.paragraph_text) for each in found if each]


def _steps(metadata: Metadata) -> list[Step]:
    return metadata.question_decomposition or []


def _step(step: Step) -> Mapping[str, Any]:
    support = step.support_paragraph
    identity = paragraph(support.title, support.paragraph_text).id if support else None
    return {"question": step.question, "answer": step.answer, "support": identity}
