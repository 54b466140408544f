"""The loop that keeps the device slots busy.

One pass: free slots take waiting completions and episodes (a shared opening is prefilled once and forked); everything
observed is appended in one call; generations begin; waiting searches, translations, and what other models are asked,
leave in one batch each on a host thread; the device decodes a block; programs run on with what has come. What an
episode samples depends on its own context and number only, never on its slot, its neighbours, or how long a search
took. That holds up to rounding, which varies with the shapes in which slots are served together; if the pass also
waits for its searches, the shapes repeat too, bit for bit.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeAlias

from lcrag.episodes.completion import completion_of
from lcrag.episodes.exchange import Aside, Exchange, Stream
from lcrag.episodes.host_worker import HostWorker
from lcrag.episodes.live import RunningEpisode
from lcrag.episodes.requests import Complete, Generate, Retrieve, Translate
from lcrag.episodes.seating import SideContext, SlotOwner, SlotScheduler
from lcrag.errors import UserError
from lcrag.policy import Tokenizer
from lcrag.sampling.continuation import SlotSampler
from lcrag.sampling.generation import Generation

Progress: TypeAlias = Callable[[int, int], None]
Ticket: TypeAlias = tuple[RunningEpisode, Aside | tuple[Exchange, int]]
# (what is asked, its random stream) -> what to sample
Settings: TypeAlias = Callable[[Generate | Complete, Stream], Generation]


@dataclasses.dataclass
class RolloutStatistics:
    """Of one run.

    Attributes:
      seconds: Wall time.
      retrieval_wait_seconds: Part of it in which the device had nothing to do but wait for a search, a translation or
        another model.
      retrieval_batches: Batched search calls.
      prefills: Openings that were prefilled.
      forks: Openings that were copied from a prefilled one.
      evictions: Episodes that gave their slot to a completion.
    """

    seconds: float = 0.0
    retrieval_wait_seconds: float = 0.0
    retrieval_batches: int = 0
    prefills: int = 0
    forks: int = 0
    evictions: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
    """What serves the requests of episodes.

    Attributes:
      sampler: The device slots, all free.
      tokenizer: The sampler's.
      settings: What is sampled for a request.
      searches: Takes the searches.
      translations: Takes the translations; None: there is no translator.
      models: Take the completions of other models, by name.
      wait: Wait for searches and other models at the end of the pass in which they were asked.
    """

    sampler: SlotSampler
    tokenizer: Tokenizer
    settings: Settings
    searches: HostWorker[Ticket]
    translations: HostWorker[Ticket] | None
    models: Mapping[str, HostWorker[Ticket]]
    wait: bool

    @property
    def workers(self) -> list[HostWorker[Ticket]]:
        return [self.searches, *([self.translations] if self.translations else []), *self.models.values()]

    def errands(self, request: Retrieve | Translate, asker: RunningEpisode) -> HostWorker[Ticket]:
        """The worker that an errand is for.

        Raises:
          UserError: there is none.
        """
        if isinstance(request, Retrieve):
            return self.searches
        if self.translations is None:
            raise no_translator(asker)
        return self.translations

    def model(self, name: str, asker: RunningEpisode) -> HostWorker[Ticket]:
        """The worker of another model.

        Raises:
          UserError: there is none of that name.
        """
        if name not in self.models:
            known = ", ".join(self.models) or "none"
            raise UserError(
                f"the program of {asker.name} asks the model {name!r}, but the runner has {known} beside the policy:"
                " add it to Runner.completers"
            )
        return self.models[name]


def no_translator(asker: RunningEpisode) -> UserError:
    """What to say of a program that translates without a translator."""
    return UserError(
        f"the program of {asker.name} lets the policy translate, but the runner has no translator: bind"
        " Runner.translator, with a file of gin/translator for example"
    )


class Rollout:
    """Runs started episodes to their end.

    Args:
      serving: What serves them.
      episodes: Started; they are served in this order.
      statistics: Is written to.
      progress: Called with (finished, total) whenever an episode has finished.
    """

    def __init__(
        self,
        serving: Serving,
        episodes: Sequence[RunningEpisode],
        statistics: RolloutStatistics,
        progress: Progress | None,
    ):
        self._serving, self._sampler, self._episodes = serving, serving.sampler, episodes
        self._statistics, self._progress = statistics, progress
        self._finished = 0
        self._seating = SlotScheduler(self._sampler.slots)

    def run(self) -> None:
        for episode in self._episodes:
            self._dispatch(episode)
        while self._finished < len(self._episodes):
            self._make_room()
            self._begin_generations(self._seating.admit())
            for worker in self._serving.workers:
                worker.start()
            if self._sampler.running:
                self._decode()
            self._wait(idle=not self._sampler.running and self._seating.stuck)
            self._deliver()

    def _dispatch(self, episode: RunningEpisode) -> None:
        """Passes on what an episode asks for now."""
        for exchange, part, request in episode.take_errands():
            self._serving.errands(request, episode).ask((episode, (exchange, part)), request)
        for aside in episode.take_asides():
            self._dispatch_aside(episode, aside)
        if episode.outcome is not None:
            self._finish(episode)
        elif (generate := episode.take_generation()) is not None:
            self._seating.ask(episode, generate)

    def _dispatch_aside(self, episode: RunningEpisode, aside: Aside) -> None:
        if aside.request.model is None:
            self._seating.ask(SideContext(episode, aside, self._sampler.context), aside.request)
            return
        worker = self._serving.model(aside.request.model, episode)
        generation = self._serving.settings(aside.request, aside.stream)
        worker.ask((episode, aside), (aside.opening.text, generation))

    def _finish(self, episode: RunningEpisode) -> None:
        self._seating.drop(episode)
        if episode.slot is not None:
            self._vacate(episode)
        self._finished += 1
        if self._progress is not None:
            self._progress(self._finished, len(self._episodes))

    def _vacate(self, occupant: SlotOwner) -> None:
        self._sampler.free([self._seating.leave(occupant)])

    def _make_room(self) -> None:
        if slots := self._seating.make_room():
            self._statistics.evictions += len(slots)
            self._sampler.free(slots)

    def _begin_generations(self, forks: Mapping[int, Sequence[int]]) -> None:
        occupants, ready = self._seating.occupants, self._seating.ready
        if unsent := {slot: occupants[slot].take_unsent() for slot in ready if occupants[slot].unsent}:
            self._sampler.append(unsent)
        for source, targets in forks.items():
            self._statistics.prefills += 1
            self._statistics.forks += len(targets)
            if targets:
                self._sampler.fork(source, targets)
        if ready:
            self._sampler.begin({slot: self._generation(occupants[slot], request) for slot, request in ready.items()})
            ready.clear()

    def _generation(self, occupant: SlotOwner, request: Generate | Complete) -> Generation:
        generation = self._serving.settings(request, occupant.stream)
        return dataclasses.replace(generation, max_tokens=min(generation.max_tokens, occupant.room_tokens))

    def _decode(self) -> None:
        for slot, sampled in self._sampler.decode().items():
            occupant = self._seating.occupants[slot]
            if isinstance(occupant, SideContext):
                self._vacate(occupant)
                self._answer(occupant.episode, occupant.aside, completion_of(sampled, self._serving.tokenizer))
            else:
                occupant.sampled(sampled)
                self._dispatch(occupant)

    def _wait(self, *, idle: bool) -> None:
        """Holds the device back for what is under way: for all of it, or if the device is idle for the first."""
        under_way = [worker.future for worker in self._serving.workers if worker.future is not None]
        if under_way and (idle or self._serving.wait):
            started = time.monotonic()
            futures.wait(
                under_way, return_when=futures.ALL_COMPLETED if self._serving.wait else futures.FIRST_COMPLETED
            )
            self._statistics.retrieval_wait_seconds += time.monotonic() - started

    def _deliver(self) -> None:
        for worker in self._serving.workers:
            for (episode, asked), answer in worker.collect():
                self._answer(episode, asked, answer)

    def _answer(self, episode: RunningEpisode, asked: Aside | tuple[Exchange, int], answer: Any) -> None:
        """Gives an episode what it waits for; one whose context was full no longer does."""
        if episode.outcome is not None:
            return
        if isinstance(asked, Aside):
            episode.completed(asked, answer)
        else:
            episode.returned(*asked, answer)
        self._dispatch(episode)
