"""Concurrent requests are collected for a few milliseconds and answered by one search."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from absl import logging

from lcrag.retrieval.passages import Hit

Search: TypeAlias = Callable[[Sequence[str], Sequence[str], int], Sequence[Sequence[Hit]]]
Hits: TypeAlias = Sequence[Sequence[Hit]]


class Overloaded(Exception):
    """Too many queries wait already."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Ask:
    """One request and the future of its answer."""

    queries: Sequence[str]
    languages: Sequence[str]
    k: int
    answer: asyncio.Future[Hits]


class SearchBatcher:
    """Answers many small requests with few large searches, one at a time; an asynchronous context manager.

    While a search runs, what comes meanwhile makes the next batch; `window_seconds` only matters to requests that
    find the batcher idle. Requests for different numbers of passages are searched apart, so that no answer depends
    on what else is in its batch.

    Args:
      search: (queries, languages, k) -> hits; called on one thread of its own.
      window_seconds: How long the first request of a batch waits for others.
      batch_queries: A batch takes no further request once it holds this many queries.
      waiting_queries: Most queries that may wait.
    """

    def __init__(self, search: Search, *, window_seconds: float, batch_queries: int, waiting_queries: int):
        self._search, self._window, self._batch = search, window_seconds, batch_queries
        self._most_waiting, self._waiting = waiting_queries, 0
        self._queue: asyncio.Queue[_Ask] = asyncio.Queue()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "SearchBatcher":
        self._task = asyncio.create_task(self._run(), name="search batches")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""
        return self._task is not None and not self._task.done()

    async def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> Hits:
        """The hits of each (query, language) pair. Whoever stops waiting is dropped from the queue.

        Raises:
          Overloaded: too many queries wait; a request that finds none waiting is always taken.
          Exception: what the search raised for this request alone.
        """
        if self._waiting and self._waiting + len(queries) > self._most_waiting:
            raise Overloaded(f"{self._waiting} queries are waiting")
        ask = _Ask(queries, languages, k, asyncio.get_running_loop().create_future())
        self._waiting += len(queries)
        self._queue.put_nowait(ask)
        return await ask.answer

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(self._window)
            while not self._queue.empty() and sum(len(ask.queries) for ask in batch) < self._batch:
                batch.append(self._queue.get_nowait())
            self._waiting -= sum(len(ask.queries) for ask in batch)
            by_count: dict[int, list[_Ask]] = {}
            for ask in batch:
                by_count.setdefault(ask.k, []).append(ask)
            for group in by_count.values():
                await self._answer(group)

    async def _answer(self, group: Iterable[_Ask]) -> None:
        """One search for all; if it fails, one for each, so that a request that cannot be served fails alone."""
        asks = [ask for ask in group if not ask.answer.done()]
        if not asks:
            return
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._executor, self._search_together, asks)
        except Exception as error:
            if len(asks) == 1:
                logging.exception("a search for %d queries failed", len(asks[0].queries))
                _settle(asks[0], error)
            else:
                for ask in asks:
                    await self._answer([ask])
            return
        for ask, hits in zip(asks, results, strict=True):
            _settle(ask, hits)

    def _search_together(self, asks: Sequence[_Ask]) -> list[Hits]:
        queries = [query for ask in asks for query in ask.queries]
        languages = [language for ask in asks for language in ask.languages]
        results = self._search(queries, languages, asks[0].k)
        if len(results) != len(queries):
            raise RuntimeError(f"the search answered {len(results)} of {len(queries)} queries")
        hits = iter(results)
        return [[next(hits) for _ in ask.queries] for ask in asks]


def _settle(ask: _Ask, result: Hits | Exception) -> None:
    """Answers a request, unless nobody waits for it any more."""
    if ask.answer.done():
        return
    if isinstance(result, Exception):
        ask.answer.set_exception(result)
    else:
        ask.answer.set_result(result)
