"""A passage, and a passage found by a search."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """A chunk of a document as stored in a collection."""

    id: str
    title: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit(Passage):
    """A passage found by a search; `score` is the inner product of unit vectors, in [-1, 1]."""

    score: float
    language: str


def passage_text(passage: Passage) -> str:
    """What of a passage is encoded: the title in front of the text."""
    return f"{passage.title} {passage.text}".strip()
