"""Searches on a host thread: everything that waits goes into one batched call while the device decodes."""

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeAlias, TypeVar

from absl import logging

from lcrag.episodes.requests import Found, FoundPassage, RetrievalFailure, Retrieve
from lcrag.errors import UserError

Search: TypeAlias = Callable[[list[str], list[str], int], Sequence[Sequence[FoundPassage]]]
Ticket = TypeVar("Ticket", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Retries:
    """How a failing search is tried again.

    Attributes:
      attempts: Calls in all before the requests of a batch are tried one by one, a last time each.
      backoff_seconds: Wait before the second call; doubled before each later one.
    """

    attempts: int = 3
    backoff_seconds: float = 0.5


class RetrievalWorker(Generic[Ticket]):
    """One thread, one batched call at a time; requests that come meanwhile make the next batch.

    Used from one thread. A search must answer each (query, language) pair for itself, whatever else is in the
    batch; then no episode depends on timing.
    """

    def __init__(self, search: Search, retries: Retries):
        self._search, self._retries = search, retries
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retrieval")
        self._queue: list[tuple[Ticket, Retrieve]] = []
        self._batch: list[tuple[Ticket, Retrieve]] = []
        self._future: Future[list[Found | RetrievalFailure]] | None = None
        self.batches = 0
        self.waited_seconds = 0.0

    def ask(self, ticket: Ticket, request: Retrieve) -> None:
        """Queues a request; its answer comes back under `ticket`."""
        self._queue.append((ticket, request))

    def start(self) -> None:
        """Sends everything queued, unless a batch is under way."""
        if self._queue and self._future is None:
            self._batch, self._queue = self._queue, []
            requests = [request for _, request in self._batch]
            self._future = self._executor.submit(answer_batch, self._search, requests, self._retries)
            self.batches += 1

    def collect(self, *, wait: bool) -> list[tuple[Ticket, Found | RetrievalFailure]]:
        """The answers that have come; with `wait`, not before the batch under way is answered.

        Raises:
          UserError: from the search, at once.
        """
        if self._future is None or not (wait or self._future.done()):
            return []
        started = time.monotonic()
        answers = self._future.result()
        self.waited_seconds += time.monotonic() - started
        self._future = None
        return [(ticket, answer) for (ticket, _), answer in zip(self._batch, answers, strict=True)]

    def close(self) -> None:
        """Sends nothing more; a call under way ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def answer_batch(search: Search, requests: Sequence[Retrieve], retries: Retries) -> list[Found | RetrievalFailure]:
    """Answers many requests with one search call for each number of passages asked.

    When every attempt has failed, each request is tried alone, so that one that cannot be served fails alone.
    """
    by_count: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_count.setdefault(request.passages, []).append(index)
    answers: dict[int, Found | RetrievalFailure] = {}
    for indices in by_count.values():
        group = [requests[index] for index in indices]
        found = _with_retries(search, group, retries)
        if not isinstance(found, RetrievalFailure):
            answers.update(zip(indices, found, strict=True))
        elif len(group) == 1:
            answers[indices[0]] = found
        else:
            answers |= {index: _alone(search, requests[index]) for index in indices}
    return [answers[index] for index in range(len(requests))]


def _with_retries(search: Search, group: Sequence[Retrieve], retries: Retries) -> list[Found] | RetrievalFailure:
    for attempt in range(1, retries.attempts + 1):
        if attempt > 1:
            time.sleep(retries.backoff_seconds * 2 ** (attempt - 2))
        try:
            return _search_together(search, group)
        except UserError:
            raise
        except Exception as error:  # whatever the service raises is counted and shown, and never ends a run
            failure = RetrievalFailure(f"{type(error).__name__}: {error}")
            logging.warning("search of %d requests failed (attempt %d): %s", len(group), attempt, failure.reason)
    return failure


def _alone(search: Search, request: Retrieve) -> Found | RetrievalFailure:
    found = _with_retries(search, [request], Retries(attempts=1))
    return found if isinstance(found, RetrievalFailure) else found[0]


def _search_together(search: Search, group: Sequence[Retrieve]) -> list[Found]:
    """One call for all (query, language) pairs, each distinct pair searched once."""
    pairs = dict.fromkeys((query, language) for each in group for query in each.queries for language in each.languages)
    results = search([query for query, _ in pairs], [language for _, language in pairs], group[0].passages)
    if len(results) != len(pairs):
        raise RuntimeError(f"the search answered {len(results)} of {len(pairs)} queries")
    hits = dict(zip(pairs, results, strict=True))
    return [[[list(hits[query, language]) for language in each.languages] for query in each.queries] for each in group]
