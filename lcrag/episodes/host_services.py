"""Services that a runner calls on host threads: searches, translations and models other than the policy.

Requests that wait for the same service leave in one batch while the device decodes. A failing call is retried; a
request that still fails is answered with a failure and never with an empty result.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import tenacity
from absl import logging

from lcrag.episodes.requests import (
    Completion,
    Found,
    FoundPassage,
    RetrievalFailure,
    Retrieve,
    Translate,
    TranslationFailure,
)
from lcrag.errors import UserError
from lcrag.sampling import SamplingParameters

T = TypeVar("T")
Ticket = TypeVar("Ticket", bound=Hashable)
# (queries, languages, number of passages) -> for each (query, language) pair its hits, best first
Search: TypeAlias = Callable[[list[str], list[str], int], Sequence[Sequence[FoundPassage]]]
# (prompt, how to continue it) of several requests -> their completions in the same order. Called on one thread, one
# batch at a time. An exception ends the run.
Completer: TypeAlias = Callable[[Sequence[tuple[str, SamplingParameters]]], Sequence[Completion]]
Translated: TypeAlias = str | TranslationFailure


@runtime_checkable
class Translator(Protocol):
    """Translates texts; thread-safe.

    A text that cannot be translated (its language is unknown, for example) becomes a `TranslationFailure`, never an
    empty text. A `UserError` ends the run; any other exception is retried.
    """

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> Sequence[Translated]:
        """Returns the translations in order.

        Args:
          texts: Texts to translate.
          source: Code of their language; None: the translator detects it for each text.
          target: Code of the language to translate into.
        """


class HostWorker(Generic[Ticket]):
    """One thread that serves one batch at a time; requests that arrive meanwhile form the next batch.

    Used from one thread. `serve` must answer each request independently of the rest of its batch; then results do not
    depend on timing.

    Args:
      name: Name of the thread.
      serve: Requests -> their answers in the same order; an exception ends the run.
    """

    def __init__(self, name: str, serve: Callable[[Sequence[Any]], Sequence[Any]]):
        self._name, self._serve = name, serve
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._queue: list[tuple[Ticket, Any]] = []
        self._batch: list[tuple[Ticket, Any]] = []
        self.future: Future[Sequence[Any]] | None = None
        self.batches = 0

    def ask(self, ticket: Ticket, request: Any) -> None:
        """Queues a request; its answer is returned with `ticket`."""
        self._queue.append((ticket, request))

    def start(self) -> None:
        """Submits everything queued, unless a batch is running."""
        if self._queue and self.future is None:
            self._batch, self._queue = self._queue, []
            self.future = self._executor.submit(self._serve, [request for _, request in self._batch])
            self.batches += 1

    def collect(self) -> list[tuple[Ticket, Any]]:
        """Returns the answers of a finished batch.

        Raises:
          RuntimeError: their number differs from that of the requests.
          Exception: whatever serving them raised.
        """
        if self.future is None or not self.future.done():
            return []
        answers, self.future = self.future.result(), None
        if len(answers) != len(self._batch):
            raise RuntimeError(f"{self._name} answered {len(answers)} of {len(self._batch)} requests")
        return [(ticket, answer) for (ticket, _), answer in zip(self._batch, answers, strict=True)]

    def close(self) -> None:
        """Submits nothing more; does not wait for a running batch."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class Retries:
    """How a failing search or translation is retried.

    Attributes:
      attempts: Calls for a whole batch, before each of its requests is tried alone once.
      backoff_seconds: Wait before the second call; doubled before each later one.
    """

    attempts: int = 3
    backoff_seconds: float = 0.5


_ONCE = Retries(attempts=1)


@dataclasses.dataclass(frozen=True)
class _Failed:
    """A call that failed in every attempt, and the last error."""

    reason: str


def _attempted(call: Callable[[], T], retries: Retries, called: str) -> T | _Failed:
    """Returns what a call returns, retried while it raises.

    Args:
      call: Its exceptions are logged; only a `UserError` propagates.
      retries: Number of attempts and waits.
      called: Name of the call in the log.
    """

    def failure(state: tenacity.RetryCallState) -> _Failed:
        error = state.outcome.exception() if state.outcome else None
        return _Failed(f"{type(error).__name__}: {error}")

    def log(state: tenacity.RetryCallState) -> None:
        logging.warning("%s failed (attempt %d): %s", called, state.attempt_number, failure(state).reason)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda e: isinstance(e, Exception) and not isinstance(e, UserError)),
        stop=tenacity.stop_after_attempt(retries.attempts),
        wait=tenacity.wait_exponential(multiplier=retries.backoff_seconds),
        after=log,
        retry_error_callback=failure,
    )(call)


def answer_batch(search: Search, requests: Sequence[Retrieve], retries: Retries) -> list[Found | RetrievalFailure]:
    """Answers many requests with one search call for each number of passages.

    When every attempt of a call has failed, each of its requests is tried alone, so only those that cannot be served
    fail.
    """
    by_count: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_count.setdefault(request.passages, []).append(index)
    answers: dict[int, Found | RetrievalFailure] = {}
    for indices in by_count.values():
        found = _search_with_retries(search, [requests[index] for index in indices], retries)
        answers |= zip(indices, found, strict=True)
    return [answers[index] for index in range(len(requests))]


def _search_with_retries(
    search: Search, group: Sequence[Retrieve], retries: Retries
) -> Sequence[Found | RetrievalFailure]:
    found = _attempted(lambda: _search_together(search, group), retries, f"search of {len(group)} requests")
    if not isinstance(found, _Failed):
        return found
    if len(group) == 1:
        return [RetrievalFailure(found.reason)]
    return [_search_with_retries(search, [request], _ONCE)[0] for request in group]


def _search_together(search: Search, group: Sequence[Retrieve]) -> list[Found]:
    """Makes one call for all (query, language) pairs; each distinct pair is searched once."""
    pairs = dict.fromkeys((query, language) for each in group for query in each.queries for language in each.languages)
    results = search([query for query, _ in pairs], [language for _, language in pairs], group[0].passages)
    if len(results) != len(pairs):
        raise RuntimeError(f"the search answered {len(results)} of {len(pairs)} queries")
    hits = dict(zip(pairs, results, strict=True))
    return [[[list(hits[query, language]) for language in each.languages] for query in each.queries] for each in group]


def answer_translations(translator: Translator, requests: Sequence[Translate], retries: Retries) -> list[Translated]:
    """Answers many requests with one call for each pair of languages; each distinct text is translated once.

    When every attempt of a call has failed, each text is tried alone, so only those that cannot be translated fail.
    """
    wanted: dict[tuple[str | None, str], dict[str, None]] = {}
    for request in requests:
        wanted.setdefault((request.source, request.target), {})[request.text] = None
    answers = {
        direction: _translate_with_retries(translator, list(texts), direction, retries)
        for direction, texts in wanted.items()
    }
    return [answers[request.source, request.target][request.text] for request in requests]


def _translate_with_retries(
    translator: Translator, texts: Sequence[str], direction: tuple[str | None, str], retries: Retries
) -> dict[str, Translated]:
    together = functools.partial(_translate_together, translator, texts, direction)
    answers = _attempted(together, retries, f"translation of {len(texts)} texts")
    if not isinstance(answers, _Failed):
        return answers
    if len(texts) == 1:
        return {texts[0]: TranslationFailure(answers.reason)}
    return {text: _translate_with_retries(translator, [text], direction, _ONCE)[text] for text in texts}


def _translate_together(
    translator: Translator, texts: Sequence[str], direction: tuple[str | None, str]
) -> dict[str, Translated]:
    answers = translator(texts, *direction)
    if len(answers) != len(texts):
        raise RuntimeError(f"the translator answered {len(answers)} of {len(texts)} texts")
    empty = TranslationFailure("an empty translation")
    return {
        text: empty if isinstance(answer, str) and not answer.strip() else answer
        for text, answer in zip(texts, answers, strict=True)
    }
