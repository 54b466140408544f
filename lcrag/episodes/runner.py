"""Runs episode programs over a sampler's slots, and returns their records.

One pass of the loop: free slots take waiting completions and episodes (a shared opening is prefilled once and forked);
all observations are appended in one call; generations begin; waiting searches, translations and requests to other
models are sent to host threads, each kind in one batch; the device decodes a block; programs continue with the answers.
The tokens of an episode depend only on its own context and number, not on its slot, on other episodes, or on the
duration of a search. This holds up to rounding, which depends on the shapes in which slots are computed together. If
each pass waits for its searches, the shapes repeat, and a run can be repeated bit for bit.
"""

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeAlias

from lcrag.data.questions import Question
from lcrag.episodes.agreement import as_programs_see, same_everywhere
from lcrag.episodes.context_text import Chat, ContextTokenizer
from lcrag.episodes.host_services import (
    Completer,
    HostWorker,
    Retries,
    Search,
    Translator,
    answer_batch,
    answer_translations,
)
from lcrag.episodes.passage_cuts import CUTS, MATCHING
from lcrag.episodes.record import EpisodeRecord, Wait
from lcrag.episodes.requests import TRANSLATION, Complete, Generate, Program, Retrieve, Translate
from lcrag.episodes.running_episode import NOT_FINITE, PendingRequest, RunningEpisode, Stream, is_finite
from lcrag.episodes.slot_scheduler import CompletionContext, SlotScheduler, completion_of
from lcrag.errors import UserError
from lcrag.limits import Count, NonNegative, PositiveShare, Seed, check_fields
from lcrag.policy import Tokenizer
from lcrag.sampling import Sampler, SamplingParameters

Progress: TypeAlias = Callable[[int, int], None]
_SERVICES = {Retrieve: "search", Translate: "translation", Complete: "completion"}  # names of waits


@dataclasses.dataclass
class RolloutStatistics:
    """Statistics of one run.

    Attributes:
      seconds: Wall time.
      retrieval_wait_seconds: Part of it in which the device was idle, waiting for searches, translations or models.
      retrieval_batches: Batched search calls.
      prefills: Openings that were prefilled.
      forks: Openings that were copied from a prefilled one.
      evictions: Episodes that gave up their slot for a completion.
      written_tokens: Tokens of the policy's finished generations and completions.
    """

    seconds: float = 0.0
    retrieval_wait_seconds: float = 0.0
    retrieval_batches: int = 0
    prefills: int = 0
    forks: int = 0
    evictions: int = 0
    written_tokens: int = 0


@dataclasses.dataclass(kw_only=True)
class Runner:
    """Runs episode programs over a sampler's slots.

    Attributes:
      sampler: The device slots.
      tokenizer: The sampler's tokenizer; encodes environment text.
      search: (queries, languages, passages) -> for each (query, language) pair its hits, best first; called on
        other threads.
      max_tokens: Default limit of a generation or completion, in tokens.
      temperature: Default temperature of a generation or completion.
      top_p: Default nucleus mass of a generation or completion.
      seed: With an episode's number, selects its random stream.
      chat: How the opening prompt is given to a model whose tokenizer has a chat template.
      answer_room: Tokens of the context kept free after every observation.
      cut_passages: How a language's passages are cut to their budget: "matching" keeps the sentences that match the
        query best, "end" keeps the first passages.
      wait_for_searches: Wait for searches, translations and other models at the end of each pass: a run can then be
        repeated bit for bit. Otherwise the device continues to decode, and results differ by rounding.
      searches_at_once: Without `wait_for_searches`, the number of batches of searches that run concurrently; with
        several, `search` must be thread-safe.
      retries: How a failing search or translation is retried.
      translator: Translates for programs, on its own thread; None: a program that offers the policy translation is
        rejected.
      completers: Models other than the policy that a program may name, each called on its own thread.
      watch: Called with an episode whenever it has advanced, to show its turns as they come.
      statistics: Of the latest run.

    Raises:
      UserError: `answer_room` leaves nothing of the context, `cut_passages` is unknown, or the chat template cannot do
        what `chat` asks.
    """

    sampler: Sampler
    tokenizer: Tokenizer
    search: Search
    max_tokens: Count = 256
    temperature: NonNegative = 1.0
    top_p: PositiveShare = 1.0
    seed: Seed = 0
    chat: Chat = Chat()
    answer_room: Count = 16
    cut_passages: str = MATCHING
    wait_for_searches: bool = True
    searches_at_once: Count = 2
    retries: Retries = Retries()
    translator: Translator | None = None
    completers: Mapping[str, Completer] = dataclasses.field(default_factory=dict)
    watch: Callable[[RunningEpisode], None] | None = None
    statistics: RolloutStatistics = dataclasses.field(default_factory=RolloutStatistics, init=False)

    def __post_init__(self):
        context = self.sampler.context
        check_fields(self)
        if self.answer_room >= context:
            raise UserError(
                f"Runner.answer_room is {self.answer_room}, which leaves nothing of the context of {context} tokens:"
                " lower it or raise Sampler.context"
            )
        if self.cut_passages not in CUTS:
            raise UserError(f"Runner.cut_passages is {self.cut_passages!r}: choose one of {', '.join(CUTS)}")
        self.chat.check(self.tokenizer)

    def run(
        self,
        programs: Sequence[tuple[Question, Program, int]],
        *,
        policy_version: int = 0,
        progress: Progress | None = None,
        between: Callable[[], None] | None = None,
        finished: Callable[[EpisodeRecord], None] | None = None,
    ) -> list[EpisodeRecord]:
        """Runs programs to their end; uses every slot of the sampler and leaves them all free.

        Args:
          programs: (question, its fresh program, number that selects its random stream).
          policy_version: Version of the sampler's parameters, written into the records.
          progress: Called with (finished, total) whenever an episode has finished.
          between: Called before every pass, between blocks of the device; it may call `add` and `change_policy`. An
            exception in it abandons the rollout.
          finished: Called with each record when its episode finishes, also for programs that were added.

        Returns:
          The records, in the order of `programs`; none if `finished` takes them.

        Raises:
          UserError: a prompt does not fit the context or offers a tool that the runner lacks (before anything is
            sampled), or a program requested a search or a model that does not exist.
        """
        self._progress, self._between, self._deliver = progress, between, finished
        episodes = self._start(programs)
        for _ in self._served(episodes, policy_version):
            pass
        return [] if finished else [episode.record() for episode in episodes]

    def stream(
        self, programs: Sequence[tuple[Question, Program, int]], *, policy_version: int = 0
    ) -> Iterator[EpisodeRecord]:
        """Runs programs like `run`, but yields each record as soon as its episode has finished.

        Closing the iterator early abandons the other episodes and frees the slots.
        """
        self._progress = self._between = self._deliver = None
        for episode in self._served(self._start(programs), policy_version):
            yield episode.record()

    def _served(self, episodes: Sequence[RunningEpisode], policy_version: int) -> Iterator[RunningEpisode]:
        """Serves started episodes, and those that are added, and yields each when it has finished."""
        self._started = time.monotonic()
        self._asked: dict[RunningEpisode | PendingRequest, float] = {}
        self.statistics, self._policy_version = RolloutStatistics(), policy_version
        self._finished, self._total, self._ended = 0, 0, collections.deque[RunningEpisode]()
        self._running: set[RunningEpisode] = set()
        self._workers, self._scheduler = self._make_workers(), SlotScheduler(self.sampler.slots)
        try:
            self._enter(episodes)
            while self._unfinished():
                self._pass()
                while self._ended:
                    yield self._ended.popleft()
            yield from self._ended  # those that ended when they were entered, in a run without a pass
        finally:
            for worker in self._workers.values():
                worker.close()
            self.sampler.free(range(self.sampler.slots))
            self.statistics.retrieval_batches = self._workers[Retrieve].batches
            self.statistics.seconds = time.monotonic() - self._started

    def add(self, programs: Sequence[tuple[Question, Program, int]]) -> None:
        """Adds programs to a run, between passes.

        Raises:
          UserError: see `run`.
        """
        self._enter(self._start(programs))

    def change_policy(self, version: int) -> None:
        """Records, between passes, that the sampler has new parameters and has kept its contexts."""
        self._policy_version = version
        for episode in self._running:
            length = episode.transcript.length if episode.slot is None else self.sampler.length(episode.slot)
            episode.versions.append((length, version))

    def contexts(self) -> dict[int, list[int]]:
        """Returns slot -> its tokens, without those of an unfinished generation; call it between passes."""
        return {slot: owner.sent for slot, owner in self._scheduler.owners.items()}

    def written_tokens(self) -> int:
        """Returns how many tokens the policy has written in the latest run, for displays while it runs."""
        return self.statistics.written_tokens

    def check(self, programs: Sequence[tuple[Question, Program, int]]) -> None:
        """Runs programs up to the first request that they wait for, and no further.

        Raises:
          UserError: a prompt does not fit the context, or offers a tool that the runner lacks.
        """
        self._start(programs)

    def _start(self, programs: Sequence[tuple[Question, Program, int]]) -> list[RunningEpisode]:
        """Starts all programs before anything is sampled, so a bad prompt is found at once."""
        tokenizer = ContextTokenizer(self.tokenizer, self.chat, self.cut_passages)
        episodes = [
            RunningEpisode(question, program, number, tokenizer, self.sampler.context, self.answer_room)
            for question, program, number in programs
        ]
        for episode in episodes:
            episode.start()
            if TRANSLATION in episode.offered and self.translator is None:
                raise _missing_translator(episode)
        return episodes

    def _make_workers(self) -> dict[type | str, HostWorker[PendingRequest]]:
        """Returns a worker for each type of request or, where a model is named, for each name."""
        search = functools.partial(answer_batch, self.search, retries=self.retries, cut_passages=self.cut_passages)
        at_once = 1 if self.wait_for_searches else self.searches_at_once
        workers: dict[type | str, HostWorker[PendingRequest]] = {Retrieve: HostWorker("retrieval", search, at_once)}
        if self.translator is not None:
            translate = functools.partial(answer_translations, self.translator, retries=self.retries)
            workers[Translate] = HostWorker("translation", translate)
        return workers | {name: HostWorker(name, completer) for name, completer in self.completers.items()}

    def _enter(self, episodes: Sequence[RunningEpisode]) -> None:
        """Adds started episodes to the run, in this order."""
        self._total += len(episodes)
        self._running.update(episodes)
        for episode in episodes:
            episode.versions = [(0, self._policy_version)]
            self._dispatch(episode)

    def _pass(self) -> None:
        """Starts what waits, decodes a block, and continues the programs whose answers have come."""
        self._start_workers()
        if slots := self._scheduler.make_room():
            self.statistics.evictions += len(slots)
            self.sampler.free(slots)
        self._begin_generations(self._scheduler.admit())
        if self.sampler.running:
            self._decode()
        self._wait(idle=not self.sampler.running and self._scheduler.stuck)
        for worker in self._workers.values():
            for pending, answer in self._collected(worker):
                self._answer(pending, answer)

    def _start_workers(self) -> None:
        for worker in self._workers.values():
            worker.start()

    def _unfinished(self) -> bool:
        """Does the work between passes, then returns whether unfinished episodes are left."""
        if self._between is not None:
            self._between()
        return self._finished < self._total

    def _collected(self, worker: HostWorker[PendingRequest]) -> list[tuple[PendingRequest, Any]]:
        """Returns the answers of a worker's finished batches, after comparing them between processes."""
        if not worker.futures:
            return []
        return same_everywhere(
            f"the {worker.name} service",
            worker.collect,
            lambda answers: [as_programs_see(each) for _, each in answers],
        )

    def _dispatch(self, episode: RunningEpisode) -> None:
        """Passes on the current requests of an episode."""
        if self.watch is not None:
            self.watch(episode)
        for pending in episode.take_pending():
            self._submit(pending)
        if episode.outcome is not None:
            self._finish(episode)
        elif (generate := episode.take_generation()) is not None:
            self._asked[episode] = time.monotonic()
            self._scheduler.ask(episode, generate)

    def _submit(self, pending: PendingRequest) -> None:
        request = pending.request
        self._asked[pending] = time.monotonic()
        if not isinstance(request, Complete):
            if type(request) not in self._workers:
                raise _missing_translator(pending.episode)
            self._workers[type(request)].ask(pending, request)
        elif request.model is None:
            self._scheduler.ask(CompletionContext(pending, self.sampler.context), request)
        elif request.model in self._workers:
            prompt = pending.opening.text
            self._workers[request.model].ask(pending, (prompt, self._generation(request, pending.stream)))
        else:
            raise UserError(
                f"the program of {pending.episode.name} asks the model {request.model!r}, but the runner has"
                f" {', '.join(self.completers) or 'none'} besides the policy: add it to Runner.completers"
            )

    def _finish(self, episode: RunningEpisode) -> None:
        self._scheduler.drop(episode)
        if episode.slot is not None:
            self.sampler.free([self._scheduler.leave(episode)])
        self._finished += 1
        self._running.discard(episode)
        self._ended.append(episode)
        if self._deliver is not None:
            self._deliver(episode.record())
        if self._progress is not None:
            self._progress(self._finished, self._total)

    def _begin_generations(self, forks: Mapping[int, Sequence[int]]) -> None:
        owners, ready = self._scheduler.owners, self._scheduler.ready
        if unsent := {slot: owners[slot].take_unsent() for slot in ready if owners[slot].unsent}:
            self.sampler.append(unsent)
        for source, targets in forks.items():
            self.statistics.prefills += 1
            self.statistics.forks += len(targets)
            if targets:
                self.sampler.fork(source, targets)
        if ready:
            generations = {slot: self._generation(request, owners[slot].stream) for slot, request in ready.items()}
            self.sampler.begin(
                {
                    slot: dataclasses.replace(each, max_tokens=min(each.max_tokens, owners[slot].room_tokens))
                    for slot, each in generations.items()
                }
            )
            ready.clear()

    def _generation(self, request: Generate | Complete, stream: Stream) -> SamplingParameters:
        return SamplingParameters(
            stop=request.stop,
            max_tokens=self.max_tokens if request.max_tokens is None else request.max_tokens,
            temperature=self.temperature if request.temperature is None else request.temperature,
            top_p=self.top_p if request.top_p is None else request.top_p,
            seed=stream.seed(self.seed),
            episode=stream.episode,
            unscaled_scores=isinstance(request, Complete),
        )

    def _decode(self) -> None:
        for slot, sampled in self.sampler.decode().items():
            owner = self._scheduler.owners[slot]
            self.statistics.written_tokens += len(sampled.tokens)
            if isinstance(owner, CompletionContext):
                self.sampler.free([self._scheduler.leave(owner)])
                completion = completion_of(sampled, self.tokenizer)
                self._answer(owner.pending, completion if is_finite(sampled) else NOT_FINITE)
            else:
                self._end_wait(owner, owner, "generation")
                owner.sampled(sampled)
                self._dispatch(owner)

    def _wait(self, *, idle: bool) -> None:
        """Waits for all running batches or, without `wait_for_searches`, for the first one if the device is idle."""
        if idle and not self.wait_for_searches:
            self._start_workers()  # with what the latest block asked for
        running = [future for worker in self._workers.values() for future in worker.futures]
        if running and (idle or self.wait_for_searches):
            started = time.monotonic()
            futures.wait(
                running, return_when=futures.ALL_COMPLETED if self.wait_for_searches else futures.FIRST_COMPLETED
            )
            self.statistics.retrieval_wait_seconds += time.monotonic() - started

    def _answer(self, pending: PendingRequest, answer: Any) -> None:
        """Answers a request, unless its episode has ended because its context was full."""
        if pending.episode.outcome is None:
            self._end_wait(pending.episode, pending, _SERVICES[type(pending.request)])
            pending.answer(answer)
            self._dispatch(pending.episode)

    def _end_wait(self, episode: RunningEpisode, asked: RunningEpisode | PendingRequest, service: str) -> None:
        """Records how long an episode waited, for a generation or for the answer to a request."""
        start, end = self._asked.pop(asked) - self._started, time.monotonic() - self._started
        episode.waits.append(Wait(len(episode.transcript.turns), service, start, end))


def _missing_translator(episode: RunningEpisode) -> UserError:
    return UserError(
        f"the program of {episode.name} lets the policy translate, but the runner has no translator: bind"
        " Runner.translator, with a file of gin/translator for example"
    )
