"""What an experiment needs of collections, wherever they are."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from lcrag.retrieval.passages import Hit


@runtime_checkable
class SearchableCollections(Protocol):
    """Collections of several languages: on this machine (`Collections`), behind HTTP or the web (`RemoteCollections`).

    Threads may share one.
    """

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that can be searched, sorted."""

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """For each pair (queries[i], languages[i]) its best passages, best first, at most `k`."""

    def content_hashes(self) -> dict[str, str]:
        """By name, what tells the content of the encoder and of each collection from any other."""
