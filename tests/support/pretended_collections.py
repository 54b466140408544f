"""Fake collections that make up passages from the query and record their calls."""

import threading
from collections.abc import Iterable, Sequence

from lcrag.retrieval.passages import Hit


class PretendedCollections:
    """Answers "QUERY in LANGUAGE" `k` times; a query that begins with "break" fails.

    `calls` are (queries, languages, k) of every search, `version` is the content hash of everything, and searches wait
    until `gate` is set.
    """

    def __init__(self, languages: Iterable[str] = ("en", "fi", "zh")):
        self.languages = tuple(sorted(languages))
        self.calls: list[tuple[list[str], list[str], int]] = []
        self.version = "1"
        self.gate = threading.Event()
        self.gate.set()

    def content_hashes(self) -> dict[str, str]:
        """Returns `version` as the hash of the encoder and of every collection."""
        return {"encoder": self.version} | {f"collection/{language}": self.version for language in self.languages}

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns fake hits whose scores fall with the rank."""
        self.calls.append((list(queries), list(languages), k))
        self.gate.wait(20.0)
        if any(query.startswith("break") for query in queries):
            raise RuntimeError("something broke")
        return [self.hits(query, language, k) for query, language in zip(queries, languages, strict=True)]

    def hits(self, query: str, language: str, k: int) -> list[Hit]:
        """Returns the hits of one query."""
        return [
            Hit(
                id=f"{language}-{rank}",
                title=f'About "{query}"',
                text=f"{query} in {language},\n{rank}",
                score=1 / (rank + 3),
                language=language,
            )
            for rank in range(k)
        ]
