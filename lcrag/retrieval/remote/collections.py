"""Collections behind a service: searched like those on this machine."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias, runtime_checkable

import cachetools

from lcrag.errors import UserError
from lcrag.retrieval.passages import Hit

Pair: TypeAlias = tuple[str, str]  # query, language


@runtime_checkable
class Backend(Protocol):
    """One kind of service.

    Attributes:
      languages: That can be searched.
      most_passages: For one query; None: as many as wanted.
      connections: Requests that it may be sent at a time.
    """

    languages: tuple[str, ...]
    most_passages: int | None
    connections: int

    def content_hashes(self) -> dict[str, str]:
        """By name, what is known of the content that is searched."""

    def batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Cuts distinct pairs into requests."""

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request: the hits of each pair, best first, at most `k`.

        Raises:
          UserError: the service is away or misconfigured.
          ServiceRefusal: it will not answer this request.
        """


class RemoteCollections:
    """Several languages' collections behind a service. Threads may share one.

    Each distinct (query, language) pair is asked for once and remembered while there is room.

    Args:
      backend: The service.
      cached_searches: Most answers that are remembered.
    """

    def __init__(self, backend: Backend, cached_searches: int = 1 << 16):
        self._backend = backend
        self._cache: cachetools.LRUCache[tuple[Pair, int], list[Hit]] = cachetools.LRUCache(cached_searches)
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(backend.connections, thread_name_prefix="remote search")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that can be searched, sorted."""
        return tuple(sorted(self._backend.languages))

    def content_hashes(self) -> dict[str, str]:
        """By name, what is known of the content that is searched."""
        return self._backend.content_hashes()

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """For each pair (queries[i], languages[i]) its best passages, best first, at most `k`.

        Raises:
          UserError: a language has no collection, `k` is out of range, or the service is away or misconfigured.
          ServiceRefusal: the service will not answer one of the requests; the others' answers are remembered.
        """
        self._check(languages, k)
        pairs = list(dict.fromkeys(zip(queries, languages, strict=True)))
        found = self._remembered(pairs, k)
        requests = self._backend.batches([pair for pair in pairs if pair not in found])
        for answered in self._executor.map(lambda request: self._fetch(request, k), requests):
            found |= answered
        return [list(found[pair]) for pair in zip(queries, languages, strict=True)]

    def _check(self, languages: Sequence[str], k: int) -> None:
        if missing := sorted(set(languages) - set(self.languages)):
            present = ", ".join(self.languages)
            raise UserError(f"no collection in language {missing[0]!r}: the service has {present}")
        most = self._backend.most_passages
        if k < 1 or (most is not None and k > most):
            upto = "" if most is None else f" to {most}"
            raise UserError(f"a search for {k} passages: ask this service for 1{upto or ' or more'}")

    def _remembered(self, pairs: Sequence[Pair], k: int) -> dict[Pair, list[Hit]]:
        with self._lock:
            return {pair: self._cache[pair, k] for pair in pairs if (pair, k) in self._cache}

    def _fetch(self, pairs: Sequence[Pair], k: int) -> Mapping[Pair, list[Hit]]:
        answered = dict(zip(pairs, self._backend.fetch(pairs, k), strict=True))
        with self._lock:
            self._cache.update({(pair, k): hits for pair, hits in answered.items()})
        return answered


def cut(pairs: Sequence[Pair], size: int) -> list[list[Pair]]:
    """Pieces of at most `size` pairs."""
    return [list(pairs[start : start + size]) for start in range(0, len(pairs), size)]
