"""Collects concurrent requests for a few milliseconds and answers them with one call."""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from absl import logging

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Overloaded(Exception):
    """Too many items are unanswered."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Ask(Generic[Item, Answer]):
    """Items of one request, at most one batch, and the future of their answers."""

    items: Sequence[Item]
    kind: Hashable
    answers: asyncio.Future[Sequence[Answer]]


class Batcher(Generic[Item, Answer]):
    """Answers many small requests with few large calls, one at a time; an asynchronous context manager.

    Requests that arrive during a call form the next batch. Requests of different kinds are answered separately, so an
    answer does not depend on its batch. A request of more items than a batch holds is answered in several.

    Args:
      serve: (items, their kind) -> an answer per item, in order; called on one thread.
      called: Name of the items in messages.
      window_seconds: How long the first request of a batch waits for others if the batcher is idle.
      batch_items: Largest number of items of a call.
      waiting_items: Largest number of unanswered items.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[Item], Hashable], Sequence[Answer]],
        *,
        called: str,
        window_seconds: float,
        batch_items: int,
        waiting_items: int,
    ):
        self._serve, self._called, self._window, self._batch = serve, called, window_seconds, batch_items
        self._most_waiting, self._unanswered = waiting_items, 0
        self._queue: collections.deque[_Ask[Item, Answer]] = collections.deque()
        self._arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=called)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Batcher[Item, Answer]":
        self._task = asyncio.create_task(self._run(), name=f"batches of {self._called}")
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

    @property
    def unanswered(self) -> int:
        """Number of items in the queue and in the running call."""
        return self._unanswered

    async def ask(self, items: Sequence[Item], kind: Hashable = None) -> Sequence[Answer]:
        """Returns the answer to each item; a cancelled request leaves the queue.

        Raises:
          Overloaded: too many items are waiting; a request is always accepted if no items are waiting.
          Exception: the error of the call for this request alone.
        """
        if self._unanswered and self._unanswered + len(items) > self._most_waiting:
            raise Overloaded(f"{self._unanswered} {self._called} are waiting")
        answers: list[Answer] = []
        self._unanswered += len(items)
        try:
            for start in range(0, len(items), self._batch):
                answers += await self._ask_part(items[start : start + self._batch], kind)
        finally:
            self._unanswered -= len(items)
        return answers

    async def _ask_part(self, items: Sequence[Item], kind: Hashable) -> Sequence[Answer]:
        ask: _Ask[Item, Answer] = _Ask(items, kind, asyncio.get_running_loop().create_future())
        self._queue.append(ask)
        self._arrived.set()
        try:
            return await ask.answers
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # a call has taken it
                self._queue.remove(ask)
            raise

    def _next_batch(self) -> list[_Ask[Item, Answer]]:
        batch: list[_Ask[Item, Answer]] = []
        size = 0
        while self._queue and (size := size + len(self._queue[0].items)) <= self._batch:
            batch.append(self._queue.popleft())
        return batch

    async def _run(self) -> None:
        while True:
            self._arrived.clear()
            if not self._queue:
                await self._arrived.wait()
            await asyncio.sleep(self._window)
            batch = self._next_batch()
            by_kind: dict[Hashable, list[_Ask[Item, Answer]]] = {}
            for ask in batch:
                by_kind.setdefault(ask.kind, []).append(ask)
            for group in by_kind.values():
                await self._answer(group)

    async def _answer(self, group: Iterable[_Ask[Item, Answer]]) -> None:
        """Makes one call for all requests, and if it fails, one for each, so only the faulty request fails."""
        asks = [ask for ask in group if not ask.answers.done()]
        if not asks:
            return
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._executor, self._serve_together, asks)
        except Exception as error:
            if len(asks) == 1:
                logging.exception("a request of %d %s failed", len(asks[0].items), self._called)
                _settle(asks[0], error)
            else:
                for ask in asks:
                    await self._answer([ask])
            return
        for ask, answers in zip(asks, results, strict=True):
            _settle(ask, answers)

    def _serve_together(self, asks: Sequence[_Ask[Item, Answer]]) -> list[Sequence[Answer]]:
        items = [item for ask in asks for item in ask.items]
        results = self._serve(items, asks[0].kind)
        if len(results) != len(items):
            raise RuntimeError(f"{len(results)} of {len(items)} {self._called} were answered")
        answers = iter(results)
        return [[next(answers) for _ in ask.items] for ask in asks]


def _settle(ask: _Ask[Item, Answer], result: Sequence[Answer] | Exception) -> None:
    """Answers a request unless it was cancelled."""
    if ask.answers.done():
        return
    if isinstance(result, Exception):
        ask.answers.set_exception(result)
    else:
        ask.answers.set_result(result)
