"""Work outside the device slots, on host threads: what waits goes into one batched call while the device decodes."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)


class HostWorker(Generic[Ticket]):
    """One thread, one batched call at a time; requests that come meanwhile make the next batch.

    Used from one thread. What serves the batch must answer each request for itself, whatever else is in it; then no
    episode depends on timing.

    Args:
      name: Of the thread.
      serve: Requests -> their answers, in the same order; what it raises ends the run.
    """

    def __init__(self, name: str, serve: Callable[[Sequence[Any]], Sequence[Any]]):
        self._name, self._serve = name, serve
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._queue: list[tuple[Ticket, Any]] = []
        self._batch: list[tuple[Ticket, Any]] = []
        self.future: Future[Sequence[Any]] | None = None
        self.batches = 0

    def ask(self, ticket: Ticket, request: Any) -> None:
        """Queues a request; its answer comes back under `ticket`."""
        self._queue.append((ticket, request))

    def start(self) -> None:
        """Sends everything queued, unless a batch is under way."""
        if self._queue and self.future is None:
            self._batch, self._queue = self._queue, []
            self.future = self._executor.submit(self._serve, [request for _, request in self._batch])
            self.batches += 1

    def collect(self) -> list[tuple[Ticket, Any]]:
        """The answers that have come.

        Raises:
          RuntimeError: there are more or fewer than requests.
          Exception: whatever serving them raised.
        """
        if self.future is None or not self.future.done():
            return []
        answers, self.future = self.future.result(), None
        if len(answers) != len(self._batch):
            raise RuntimeError(f"{self._name} answered {len(answers)} of {len(self._batch)} requests")
        return [(ticket, answer) for (ticket, _), answer in zip(self._batch, answers, strict=True)]

    def close(self) -> None:
        """Sends nothing more; a call under way ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
