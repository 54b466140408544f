"""The loop that keeps the device slots busy.

One pass: free slots take waiting episodes (a shared opening is prefilled once and forked); everything observed is
appended in one call; generations begin; waiting searches leave in one batch on a host thread; the device decodes a
block; programs run on with what has come. What an episode samples depends on its own context and number only, never
on its slot, its neighbours, or how long a search took. That holds up to rounding, which varies with the shapes in
which slots are served together; if the pass also waits for its searches, the shapes repeat too, bit for bit.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from lcrag.episodes.admission import plan_admissions
from lcrag.episodes.live import Exchange, LiveEpisode
from lcrag.episodes.requests import Generate
from lcrag.episodes.retrieval_worker import RetrievalWorker
from lcrag.sampling.generation import Generation, Sampled

Progress: TypeAlias = Callable[[int, int], None]
Ticket: TypeAlias = tuple[LiveEpisode, Exchange, int]


@runtime_checkable
class SlotSampler(Protocol):
    """What a rollout needs of a sampler; `lcrag.sampling.Sampler` is one."""

    slots: int
    context: int

    @property
    def running(self) -> int: ...

    def append(self, entries: Mapping[int, Sequence[int]]) -> None: ...

    def fork(self, source: int, targets: Sequence[int]) -> None: ...

    def begin(self, requests: Mapping[int, Generation]) -> None: ...

    def decode(self) -> dict[int, Sampled]: ...

    def free(self, slots: Iterable[int]) -> None: ...


@dataclasses.dataclass
class RolloutStatistics:
    """Of one run.

    Attributes:
      seconds: Wall time.
      retrieval_wait_seconds: Part of it in which the device had nothing to do but wait for a search.
      retrieval_batches: Batched search calls.
      prefills: Openings that were prefilled.
      forks: Openings that were copied from a prefilled one.
    """

    seconds: float = 0.0
    retrieval_wait_seconds: float = 0.0
    retrieval_batches: int = 0
    prefills: int = 0
    forks: int = 0


class Rollout:
    """Runs started episodes to their end.

    Args:
      sampler: The device slots, all free.
      worker: Takes the searches.
      episodes: Started; they are served in this order.
      generation: What the sampler is asked, for an episode and its request.
      wait_for_searches: Wait for them at the end of the pass in which they left.
      statistics: Is written to.
      progress: Called with (finished, total) whenever an episode has finished.
    """

    def __init__(
        self,
        sampler: SlotSampler,
        worker: RetrievalWorker[Ticket],
        episodes: Sequence[LiveEpisode],
        generation: Callable[[LiveEpisode, Generate], Generation],
        wait_for_searches: bool,
        statistics: RolloutStatistics,
        progress: Progress | None,
    ):
        self._sampler, self._worker, self._episodes = sampler, worker, episodes
        self._generation, self._statistics, self._progress = generation, statistics, progress
        self._wait_for_searches = wait_for_searches
        self._finished = 0
        self._free = list(range(sampler.slots))
        self._seated: dict[int, LiveEpisode] = {}
        self._ready: dict[int, Generate] = {}  # slot -> the generation to begin there
        self._queue: list[tuple[LiveEpisode, Generate]] = []  # a generation to begin, and no slot yet
        self._openings: dict[tuple[int, ...], int] = {}

    def run(self) -> None:
        for episode in self._episodes:
            self._dispatch(episode)
        while self._finished < len(self._episodes):
            self._begin_generations(self._admit())
            self._worker.start()
            if self._sampler.running:
                self._decode()
            idle = not (self._sampler.running or self._ready or (self._queue and self._free))
            self._deliver(wait=idle or self._wait_for_searches)

    def _dispatch(self, episode: LiveEpisode) -> None:
        """Passes on what an episode asks for now."""
        for exchange, part, request in episode.take_searches():
            self._worker.ask((episode, exchange, part), request)
        if episode.outcome is not None:
            self._finish(episode)
        elif (generate := episode.take_generation()) is not None:
            if episode.slot is None:
                self._queue.append((episode, generate))
            else:
                self._ready[episode.slot] = generate

    def _finish(self, episode: LiveEpisode) -> None:
        if episode.slot is not None:
            self._sampler.free([episode.slot])
            del self._seated[episode.slot]
            heapq.heappush(self._free, episode.slot)
        self._finished += 1
        if self._progress is not None:
            self._progress(self._finished, len(self._episodes))

    def _admit(self) -> dict[int, list[int]]:
        """Seats waiting episodes in the free slots; returns which slots are to be forked from which."""
        if not (self._queue and self._free):
            return {}
        openings = [self._openings.setdefault(tuple(e.unsent), len(self._openings)) for e, _ in self._queue]
        forks: dict[int, list[int]] = {}
        admitted: set[int] = set()
        for admission in plan_admissions(openings, len(self._free)):
            source = self._seat(admission.leader)
            forks[source] = [self._seat(place) for place in admission.followers]
            for target in forks[source]:
                self._seated[target].take_unsent()  # comes with the copied slot
            admitted |= {admission.leader, *admission.followers}
        self._queue = [waiting for place, waiting in enumerate(self._queue) if place not in admitted]
        return forks

    def _seat(self, place: int) -> int:
        episode, generate = self._queue[place]
        slot = episode.slot = heapq.heappop(self._free)
        self._seated[slot], self._ready[slot] = episode, generate
        return slot

    def _begin_generations(self, forks: Mapping[int, Sequence[int]]) -> None:
        if unsent := {slot: self._seated[slot].take_unsent() for slot in self._ready if self._seated[slot].unsent}:
            self._sampler.append(unsent)
        for source, targets in forks.items():
            self._statistics.prefills += 1
            self._statistics.forks += len(targets)
            if targets:
                self._sampler.fork(source, targets)
        if self._ready:
            self._sampler.begin({s: self._generation(self._seated[s], request) for s, request in self._ready.items()})
            self._ready = {}

    def _decode(self) -> None:
        for slot, sampled in self._sampler.decode().items():
            episode = self._seated[slot]
            episode.sampled(sampled)
            self._dispatch(episode)

    def _deliver(self, *, wait: bool) -> None:
        for (episode, exchange, part), answer in self._worker.collect(wait=wait):
            if episode.outcome is None:  # an episode whose context was full no longer waits
                episode.searched(exchange, part, answer)
                self._dispatch(episode)
