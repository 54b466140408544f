"""What a row of an English question set becomes: a question, and the paragraphs that come with it."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import pydantic

from lcrag.data.questions import Question, with_question_mark
from lcrag.data.rows import BadRows
from lcrag.retrieval.passages import Passage

LANGUAGE = "en"


def distinct(texts: Iterable[str]) -> list[str]:
    """The texts that say something, each once, without white space around it."""
    return list(dict.fromkeys(filter(None, map(str.strip, texts))))


def _telling(texts: list[str]) -> list[str]:
    if not (kept := distinct(texts)):
        raise ValueError("no answer says anything")
    return kept


# Golden answers; blank ones are dropped, but one must be left.
Answers = Annotated[list[str], pydantic.AfterValidator(_telling)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with its set's own paragraphs, none where the set has none.

    `question.extra` holds what the set tells of it: `type` (comparison, bridge, 2hop, ...), `supports` (ids of the
    paragraphs that answer it), `supporting_facts` ([title, number of the sentence from 0], ...), `evidences` (triples),
    `decomposition` ([{"question", "answer", "support"}, ...], `#1` standing for the first answer), and so on.
    """

    question: Question
    passages: tuple[Passage, ...] = ()


# (file, what becomes of bad rows) -> (line, what was asked) of each row
Reader: TypeAlias = Callable[[pathlib.Path, BadRows], Iterator[tuple[int, Asked]]]


def asked(identity: str, text: str, answers: Iterable[str], passages: Sequence[Passage] = (), **extra: Any) -> Asked:
    """A question of a set that is named later; what of `extra` is empty is left out."""
    told = {name: value for name, value in extra.items() if value not in (None, "", [])}
    question = Question(
        id=identity,
        dataset="",
        language=LANGUAGE,
        text=with_question_mark(text),
        answers=tuple(answers),
        extra=told,
    )
    return Asked(question=question, passages=tuple(passages))


def paragraph(title: str, text: str) -> Passage:
    """A paragraph as a passage; its id is made of its content, so that the same one in many rows is one."""
    title, text = title.strip(), text.strip()
    content = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:12]
    return Passage(id=f"{title}/{content}", title=title, text=text)


def supports_of(passages: Iterable[Passage], titles: Iterable[str]) -> list[str]:
    """Ids of the paragraphs with one of the titles."""
    wanted = {title.strip() for title in titles}
    return [passage.id for passage in passages if passage.title in wanted]
