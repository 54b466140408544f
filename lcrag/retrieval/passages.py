"""Passages, hits, and the interface of everything that can be searched."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import gin

from lcrag.errors import UserError


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
    """Returns the text of a passage to encode: its title and its text."""
    return f"{passage.title} {passage.text}".strip()


def contents_of(passage: Passage) -> str:
    """Joins title and text: the title in double quotes on the first line."""
    return f'"{passage.title.replace(chr(10), " ")}"\n{passage.text}'


def title_and_text(contents: str, title: str = "") -> tuple[str, str]:
    """Splits contents into title and text; quotes around the title are optional, and a single line is text.

    A given `title` is kept, and all contents are text, unless they begin with that title.
    """
    head, newline, text = contents.partition("\n")
    bare = head.strip()
    quoted = len(bare) > 1 and bare.startswith('"') and bare.endswith('"')
    first = bare[1:-1] if quoted else head
    if not newline or (title.strip() and first.strip().strip('"') != title.strip().strip('"')):
        return title, contents
    return first, text


@runtime_checkable
class SearchableCollections(Protocol):
    """The collections of several languages, local (`Collections`) or remote (`RemoteCollections`); thread-safe."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that can be searched, sorted."""

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first."""

    def content_hashes(self) -> dict[str, str]:
        """Returns hashes of the content of the encoder and of each collection, by name."""


@gin.configurable
class NoCollections:
    """A `SearchableCollections` without any collection."""

    @property
    def languages(self) -> tuple[str, ...]:
        return ()

    def content_hashes(self) -> dict[str, str]:
        return {}

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        if queries:
            raise UserError("a program searches, but there are no collections: bind some in place of @NoCollections()")
        return []
