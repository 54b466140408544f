"""Services that a runner calls on host threads: searches, translations and models other than the policy.

Requests that wait for the same service are sent in one batch while the device decodes. A failing call is retried; a
request that still fails is answered with a failure and never with an empty result.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar

from absl import logging

from lcrag.episodes.passage_cuts import MATCHING, shortened
from lcrag.episodes.requests import (
    Completion,
    Found,
    FoundPassage,
    FoundPassages,
    GenerationFailure,
    RetrievalFailure,
    Retrieve,
    Translate,
    TranslationFailure,
)
from lcrag.errors import UserError, typed
from lcrag.sampling import SamplingParameters

Ticket = TypeVar("Ticket", bound=Hashable)
# (queries, languages, number of passages) -> for each (query, language) pair its hits, best first
Search: TypeAlias = Callable[[list[str], list[str], int], Sequence[Sequence[FoundPassage]]]
# (prompt, parameters) of several requests -> their completions in the same order, or a failure for each request
# that fails after every retry. Called on one thread, one batch at a time. An exception ends the run.
Completer: TypeAlias = Callable[[Sequence[tuple[str, SamplingParameters]]], Sequence[Completion | GenerationFailure]]
Translated: TypeAlias = str | TranslationFailure
# (texts, code of their language or None: detected for each text, code of the language to translate into) -> the
# translations in order; thread-safe. A text that cannot be translated (its language is unknown, for example) becomes a
# `TranslationFailure`, never an empty text; it is `unavailable` if the translator itself fails. A `UserError` ends the
# run; any other exception is retried.
Translator: TypeAlias = Callable[[Sequence[str], str | None, str], Sequence[Translated]]


class HostWorker(Generic[Ticket]):
    """Threads that serve one batch each; requests that arrive while all are busy form the next batch.

    Used from one thread. `serve` returns the answers of requests in their order, and an exception of it ends the run.
    It must answer each request independently of the rest of its batch; then results do not depend on timing. With
    several threads, `at_once`, it must be thread-safe.
    """

    def __init__(self, name: str, serve: Callable[[Sequence[Any]], Sequence[Any]], at_once: int = 1):
        self.name, self._serve, self._at_once = name, serve, at_once
        self._executor = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix=name)
        self._queue: list[tuple[Ticket, Any]] = []
        self._running: list[tuple[list[Ticket], Future[Sequence[Any]]]] = []
        self.batches = 0

    @property
    def futures(self) -> list[Future[Sequence[Any]]]:
        """The answers of the batches that were submitted and not collected."""
        return [future for _, future in self._running]

    def ask(self, ticket: Ticket, request: Any) -> None:
        """Queues a request; its answer is returned with `ticket`."""
        self._queue.append((ticket, request))

    def start(self) -> None:
        """Submits everything queued, unless all threads are busy."""
        if self._queue and len(self._running) < self._at_once:
            tickets, requests = map(list, zip(*self._queue, strict=True))
            self._queue = []
            self._running.append((tickets, self._executor.submit(self._serve, requests)))
            self.batches += 1

    def collect(self) -> list[tuple[Ticket, Any]]:
        """Returns the answers of finished batches, in the order of their submission, or raises what serving raised."""
        finished = [batch for batch in self._running if batch[1].done()]
        self._running = [batch for batch in self._running if batch not in finished]
        answered: list[tuple[Ticket, Any]] = []
        for tickets, future in finished:
            answers = future.result()
            if len(answers) != len(tickets):
                raise RuntimeError(f"{self.name} answered {len(answers)} of {len(tickets)} requests")
            answered += zip(tickets, answers, strict=True)
        return answered

    def close(self) -> None:
        """Submits nothing more; does not wait for running batches."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@typed
@dataclasses.dataclass(frozen=True)
class Retries:
    """How a failing search or translation is retried."""

    attempts: int = 3  # calls for a whole batch; after that, each of its requests is tried separately once
    backoff_seconds: float = 0.5  # wait before the second call; doubled before each later one

    def __post_init__(self):
        if self.attempts < 1 or not self.backoff_seconds >= 0:
            raise UserError(f"{self}: make at least 1 attempt, and wait for 0 seconds or more")


def _answer_with_retries(
    serve: Callable[[Sequence[Any]], Sequence[Any]],
    items: Sequence[Any],
    retries: Retries,
    failure: Callable[[str], Any],
    name: str,
) -> Sequence[Any]:
    """Answers items with one call, which is retried; if all attempts fail, each item is tried separately once.

    Exceptions of `serve` are logged, and only a `UserError` propagates: `failure` makes the answer to an item that
    fails separately too from the last error.
    """
    reason = ""
    for attempt in range(1, retries.attempts + 1):
        try:
            return serve(items)
        except UserError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            logging.warning("%s of %d failed (attempt %d): %s", name, len(items), attempt, reason)
        if attempt < retries.attempts:
            time.sleep(retries.backoff_seconds * 2 ** (attempt - 1))
    if len(items) == 1:
        return [failure(reason)]
    once = Retries(attempts=1)
    return [_answer_with_retries(serve, [item], once, failure, name)[0] for item in items]


def answer_batch(
    search: Search, requests: Sequence[Retrieve], retries: Retries, cut_passages: str = MATCHING
) -> list[Found | RetrievalFailure]:
    """Answers searches with one call for each number of passages; only requests that cannot be served fail.

    Very long passages are shortened here, on the searching thread, not between decode blocks; see
    `passage_cuts.shortened`.
    """

    def read(hit: FoundPassage, query: str) -> FoundPassage:
        text = shortened(hit.text, query, cut_passages)
        return hit if text is hit.text else dataclasses.replace(hit, text=text)  # type: ignore[type-var]

    def search_all(group: Sequence[Retrieve]) -> list[Found]:
        pairs = dict.fromkeys((query, code) for each in group for query in each.queries for code in each.languages)
        results = search([query for query, _ in pairs], [code for _, code in pairs], group[0].passages)
        if len(results) != len(pairs):
            raise RuntimeError(f"the search answered {len(results)} of {len(pairs)} queries")
        hits = {pair: [read(hit, pair[0]) for hit in found] for pair, found in zip(pairs, results, strict=True)}
        return [
            FoundPassages(
                [[list(hits[query, code]) for code in each.languages] for query in each.queries], each.queries
            )
            for each in group
        ]

    answers: dict[int, Found | RetrievalFailure] = {}
    for count in dict.fromkeys(request.passages for request in requests):
        places = [place for place, request in enumerate(requests) if request.passages == count]
        group = [requests[place] for place in places]
        found = _answer_with_retries(search_all, group, retries, RetrievalFailure, "search")
        answers |= zip(places, found, strict=True)
    return [answers[place] for place in range(len(requests))]


def answer_translations(
    translator: Translator, requests: Sequence[Translate], retries: Retries
) -> list[Translated | GenerationFailure]:
    """Answers translations with one call for each pair of languages, in which each distinct text is translated once.

    A text that cannot be translated is answered with a `TranslationFailure`, and with a `GenerationFailure` if the
    translator is unavailable.
    """

    def translate(group: Sequence[Translate]) -> list[Translated | GenerationFailure]:
        answers: list[Translated | GenerationFailure] = []
        translated = translator([each.text for each in group], group[0].source, group[0].target)
        if len(translated) != len(group):
            raise RuntimeError(f"the translator answered {len(translated)} of {len(group)} texts")
        for answer in translated:
            if isinstance(answer, TranslationFailure) and answer.unavailable:
                answers.append(GenerationFailure(answer.reason))
            elif isinstance(answer, str) and not answer.strip():
                answers.append(TranslationFailure("an empty translation"))
            else:
                answers.append(answer)
        return answers

    by_direction: dict[tuple[str | None, str], dict[Translate, None]] = {}
    for request in requests:
        by_direction.setdefault((request.source, request.target), {})[request] = None
    answers: dict[Translate, Translated | GenerationFailure] = {}
    for group in by_direction.values():
        translated = _answer_with_retries(translate, list(group), retries, GenerationFailure, "translation")
        answers |= zip(group, translated, strict=True)
    return [answers[request] for request in requests]
