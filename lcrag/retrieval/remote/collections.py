"""Collections of a remote service, searched like local ones."""

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
      languages: Languages that can be searched.
      most_passages: Largest number of passages per query; None: no limit.
      connections: Largest number of concurrent requests.
    """

    languages: tuple[str, ...]
    most_passages: int | None
    connections: int

    def content_hashes(self) -> dict[str, str]:
        """Returns hashes, or other identification, of the searched content, by name."""

    def batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Splits distinct pairs into requests."""

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request; returns at most `k` hits of each pair, best first.

        Raises:
          UserError: The service is unreachable or misconfigured.
          ServiceRefusal: It refuses this request.
        """


class RemoteCollections:
    """The collections of several languages at a service; thread-safe.

    Answers to distinct (query, language) pairs are cached.

    Args:
      backend: The service.
      cached_searches: Capacity of the cache, in answers.
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
        """Returns the content hashes that the service reports, by name."""
        return self._backend.content_hashes()

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first.

        Raises:
          UserError: A language has no collection, `k` is out of range, or the service is unreachable or misconfigured.
          ServiceRefusal: The service refuses one of the requests; the answers to the others are cached.
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


def cut_by_language(pairs: Sequence[Pair], size: int) -> list[list[Pair]]:
    """Splits pairs into pieces of one language and at most `size`."""
    languages = dict.fromkeys(language for _, language in pairs)
    return [piece for code in languages for piece in cut([pair for pair in pairs if pair[1] == code], size)]


def cut(pairs: Sequence[Pair], size: int) -> list[list[Pair]]:
    """Splits pairs into pieces of at most `size`."""
    return [list(pairs[start : start + size]) for start in range(0, len(pairs), size)]
