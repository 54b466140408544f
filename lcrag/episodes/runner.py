"""Runs episode programs over a sampler's slots, and yields the record of each as it finishes.

One pass of the loop: free slots take waiting completions and episodes (a shared opening is prefilled once and forked);
all observations are appended in one call; generations begin; waiting searches, translations and requests to other
models are sent to host threads, each kind in one batch; the device decodes a block; programs continue with the answers.
The tokens of an episode depend only on its own context and number, not on its slot, on other episodes, or on the
duration of a search. This holds up to rounding, which depends on the shapes in which slots are computed together. If
each pass waits for its searches, the shapes repeat, and a run can be repeated bit for bit.
"""

import codecs
import collections
import dataclasses
import functools
import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numpy as np
from absl import logging

from lcrag.collectives import compare_across_processes
from lcrag.data.questions import Question
from lcrag.episodes.chat import Chat, ContextTokenizer
from lcrag.episodes.programs import (
    TRANSLATION,
    Complete,
    Completion,
    Found,
    FoundPassage,
    FoundPassages,
    Generate,
    GenerationFailure,
    Program,
    RetrievalFailure,
    Retrieve,
    Translate,
    Translated,
    TranslationFailure,
)
from lcrag.episodes.record import EpisodeRecord, Wait
from lcrag.episodes.running_episode import NOT_FINITE, PendingRequest, RunningEpisode, SlotOwner, derived_seed
from lcrag.episodes.searches import MATCHING, shortened
from lcrag.errors import Count, NotNegative, UserError, typed
from lcrag.policy import Tokenizer
from lcrag.retries import Patience
from lcrag.rewards.text import is_visible
from lcrag.sampling import Sampled, SamplingParameters, SlotSampler

# --- Services on host threads ---

# (queries, languages, number of passages) -> for each (query, language) pair its hits, best first
Search: TypeAlias = Callable[[list[str], list[str], int], Sequence[Sequence[FoundPassage]]]
# (prompt, parameters) of several requests -> their completions in the same order, or a failure for each request
# that fails after every retry. Called on one thread, one batch at a time. An exception ends the run.
Completer: TypeAlias = Callable[[Sequence[tuple[str, SamplingParameters]]], Sequence[Completion | GenerationFailure]]
# (texts, code of their language or None: detected for each text, code of the language to translate into) -> the
# translations in order; thread-safe. A text that cannot be translated (its language is unknown, for example) becomes a
# `TranslationFailure`, never an empty text; it is `unavailable` if the translator itself fails. A `UserError` ends the
# run; any other exception is retried.
Translator: TypeAlias = Callable[[Sequence[str], str | None, str], Sequence[Translated]]


class HostWorker:
    """Threads that serve one batch each; requests that arrive while all are busy form the next batch.

    Used from one thread. `serve` returns the answers of requests in their order, and an exception of it ends the run.
    It must answer each request independently of the rest of its batch; then results do not depend on timing. With
    several threads, `at_once`, it must be thread-safe.
    """

    def __init__(self, name: str, serve: Callable[[Sequence[Any]], Sequence[Any]], at_once: int = 1):
        self.name, self._serve, self._at_once = name, serve, at_once
        self._executor = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix=name)
        self._queue: list[tuple[PendingRequest, Any]] = []
        # The batches that were submitted and not collected, and their answers.
        self.running: list[tuple[list[PendingRequest], Future[Sequence[Any]]]] = []

    def ask(self, pending: PendingRequest, request: Any) -> None:
        """Queues a request; its answer is returned with `pending`."""
        self._queue.append((pending, request))

    def start(self) -> None:
        """Submits everything queued, unless all threads are busy."""
        if self._queue and len(self.running) < self._at_once:
            pending, requests = map(list, zip(*self._queue, strict=True))
            self._queue = []
            self.running.append((pending, self._executor.submit(self._serve, requests)))

    def collect(self) -> list[tuple[PendingRequest, Any]]:
        """Returns the answers of finished batches, in the order of their submission, or raises what serving raised."""
        finished = [batch for batch in self.running if batch[1].done()]
        self.running = [batch for batch in self.running if batch not in finished]
        answered: list[tuple[PendingRequest, Any]] = []
        for pending, future in finished:
            answers = future.result()
            if len(answers) != len(pending):
                raise RuntimeError(f"{self.name} answered {len(answers)} of {len(pending)} requests")
            answered += zip(pending, answers, strict=True)
        return answered

    def close(self) -> None:
        """Submits nothing more; does not wait for running batches."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _answer_by_group(
    serve: Callable[[Sequence[Any]], Sequence[Any]],
    requests: Sequence[Any],
    group_of: Callable[[Any], Any],
    retries: Patience,
    failure: Callable[[str], Any],
    name: str,
) -> list[Any]:
    """Answers each group of requests with one call, which is retried; if all attempts fail, each is tried alone once.

    Exceptions of `serve` are logged, and only a `UserError` propagates: `failure` makes the answer to a request that
    fails alone too from the last error.
    """

    def answered(group: Sequence[Any], retries: Patience) -> Sequence[Any]:
        def may_pass(error: BaseException) -> bool:
            logging.warning("%s of %d failed: %s: %s", name, len(group), type(error).__name__, error)
            return isinstance(error, Exception) and not isinstance(error, UserError)

        try:
            return retries.call(lambda: serve(group), may_pass)
        except UserError:
            raise
        except Exception as error:
            if len(group) == 1:
                return [failure(f"{type(error).__name__}: {error}")]
        return [answered([request], Patience(attempts=1))[0] for request in group]

    answers: dict[int, Any] = {}
    for wanted in dict.fromkeys(map(group_of, requests)):
        places = [place for place, request in enumerate(requests) if group_of(request) == wanted]
        answers |= zip(places, answered([requests[place] for place in places], retries), strict=True)
    return [answers[place] for place in range(len(requests))]


def answer_batch(
    search: Search, requests: Sequence[Retrieve], retries: Patience, cut_passages: str = MATCHING
) -> list[Found | RetrievalFailure]:
    """Answers searches with one call for each number of passages; only requests that cannot be served fail.

    Very long passages are `shortened` here, on the searching thread, not between decode blocks.
    """

    def read(hit: FoundPassage, query: str) -> FoundPassage:
        text = shortened(hit.text, query, cut_passages)
        return hit if text is hit.text else dataclasses.replace(hit, text=text)  # type: ignore[type-var]

    def search_all(group: Sequence[Retrieve]) -> list[Found]:
        pairs = dict.fromkeys(
            (query, code) for request in group for query in request.queries for code in request.languages
        )
        results = search([query for query, _ in pairs], [code for _, code in pairs], group[0].passages)
        if len(results) != len(pairs):
            raise RuntimeError(f"the search answered {len(results)} of {len(pairs)} queries")
        hits = {pair: [read(hit, pair[0]) for hit in found] for pair, found in zip(pairs, results, strict=True)}
        return [
            FoundPassages(
                [[list(hits[query, code]) for code in request.languages] for query in request.queries], request.queries
            )
            for request in group
        ]

    return _answer_by_group(search_all, requests, lambda request: request.passages, retries, RetrievalFailure, "search")


def answer_translations(
    translator: Translator, requests: Sequence[Translate], retries: Patience
) -> list[Translated | GenerationFailure]:
    """Answers translations with one call for each pair of languages, in which each distinct text is translated once.

    A text that cannot be translated is answered with a `TranslationFailure`, and with a `GenerationFailure` if the
    translator is unavailable.
    """

    def translate(group: Sequence[Translate]) -> list[Translated | GenerationFailure]:
        answers: list[Translated | GenerationFailure] = []
        translated = translator([request.text for request in group], group[0].source, group[0].target)
        if len(translated) != len(group):
            raise RuntimeError(f"the translator answered {len(translated)} of {len(group)} texts")
        for answer in translated:
            if isinstance(answer, TranslationFailure) and answer.unavailable:
                answers.append(GenerationFailure(answer.reason))
            elif isinstance(answer, str) and not is_visible(answer):
                answers.append(TranslationFailure("an empty translation"))
            else:
                answers.append(answer)
        return answers

    distinct = list(dict.fromkeys(requests))
    direction = lambda request: (request.source, request.target)  # noqa: E731
    answers = _answer_by_group(translate, distinct, direction, retries, GenerationFailure, "translation")
    answer_to = dict(zip(distinct, answers, strict=True))
    return [answer_to[request] for request in requests]


# --- The runner ---

# (question, its fresh program, number that selects its random stream)
Programs: TypeAlias = Sequence[tuple[Question, Program, int]]
_SERVICES = {Retrieve: "search", Translate: "translation", Complete: "completion"}  # names of waits


@dataclasses.dataclass
class RolloutStatistics:
    """Statistics of one run."""

    retrieval_wait_seconds: float = 0.0  # in which the device was idle, waiting for searches, translations or models
    evictions: int = 0  # episodes that gave up their slot for a completion
    written_tokens: int = 0  # of the policy's finished generations and completions


WAIT_SECONDS = 0.5  # how long a thread waits for others before it looks whether it should end


class Abandoned(Exception):
    """Raised between two passes of a run that is abandoned."""


@typed
@dataclasses.dataclass(kw_only=True)
class Runner:
    """Runs episode programs over a sampler's slots.

    If each pass waits for searches, translations and other models, a run can be repeated bit for bit. Otherwise the
    device continues to decode, and results differ by rounding.
    """

    sampler: SlotSampler
    tokenizer: Tokenizer  # the sampler's; encodes environment text
    search: Search  # called on other threads
    max_tokens: Count = 256  # default of a generation or completion, as are the next two
    temperature: NotNegative = 1.0
    top_p: float = 1.0
    seed: int = 0  # with an episode's number, selects its random stream
    chat: Chat = Chat()
    answer_room: Count = 16  # tokens of the context kept free after every observation
    # How a language's passages are cut to their budget: "matching" keeps the sentences that match the query best,
    # "end" keeps the first passages.
    cut_passages: Literal["matching", "end"] = "matching"
    wait_for_searches: bool = True
    searches_at_once: Count = 2  # batches of searches, if no pass waits for them; `search` is thread-safe then
    retries: Patience = Patience(attempts=3)  # of a whole batch; then each of its requests is tried separately once
    translator: Translator | None = None  # None: a program that offers the policy translation is rejected
    completers: Mapping[str, Completer] = dataclasses.field(default_factory=dict)  # other models, by name
    watch: Callable[[RunningEpisode], None] | None = None  # called with an episode whenever it has advanced
    statistics: RolloutStatistics = dataclasses.field(default_factory=RolloutStatistics, init=False)  # the latest run's

    def __post_init__(self):
        context = self.sampler.context
        if not 0 < self.top_p <= 1:
            raise UserError(f"Runner.top_p is {self.top_p}: set it above 0 and to at most 1")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"Runner.seed is {self.seed}: set it between 0 and {2**32 - 1}")
        if self.answer_room >= context:
            raise UserError(
                f"Runner.answer_room is {self.answer_room}, which leaves nothing of the context of {context} tokens:"
                " lower it or raise Sampler.context"
            )
        self.chat.check(self.tokenizer)

    def run(self, programs: Programs) -> list[EpisodeRecord]:
        """Runs programs to their end; returns their records in the order of `programs`. See `stream`."""
        episodes = self._start(programs)
        for _ in self._serve(episodes):
            pass
        return [episode.record(self.sampler.policy_version) for episode in episodes]

    def stream(self, programs: Programs, *, between: Callable[[], None] = lambda: None) -> Iterator[EpisodeRecord]:
        """Runs programs, and yields each record as soon as its episode has finished.

        Uses every slot of the sampler and leaves them all free. Closing the iterator early abandons the other episodes;
        `between` is called between two passes, and while one waits, and may raise what ends the run.
        """
        for episode in self._serve(self._start(programs), between):
            yield episode.record(self.sampler.policy_version)

    def check(self, programs: Programs) -> None:
        """Raises a UserError if a prompt does not fit the context, or offers a tool that the runner lacks.

        Programs run up to the first request that they wait for, and no further.
        """
        self._start(programs)

    def _start(self, programs: Programs) -> list[RunningEpisode]:
        """Starts all programs before anything is sampled, so that a bad prompt is found at once."""
        tokenizer = ContextTokenizer(self.tokenizer, self.chat, self.cut_passages)
        episodes = [
            RunningEpisode(question, program, number, tokenizer, self.sampler.context, self.answer_room)
            for question, program, number in programs
        ]
        for episode in episodes:
            episode.start()
            if TRANSLATION in episode.offered:
                self.check_translator(episode)
        return episodes

    def check_translator(self, episode: RunningEpisode) -> None:
        """Raises a UserError if there is no translator for an episode's program."""
        if self.translator is None:
            raise UserError(
                f"the program of {episode.name} lets the policy translate, but the runner has no translator: bind"
                " Runner.translator, with --gin_file=translate_r1/translator.gin for example"
            )

    def _serve(
        self, episodes: Sequence[RunningEpisode], between: Callable[[], None] = lambda: None
    ) -> Iterator[RunningEpisode]:
        """Serves started episodes until all have finished, and yields each when it has."""
        self.statistics = RolloutStatistics()
        run, unfinished = _Run(self, between), len(episodes)
        try:
            for episode in episodes:
                run.dispatch(episode)
            while True:
                while run.finished:
                    yield run.finished.popleft()
                    unfinished -= 1
                if not unfinished:
                    return
                between()
                run.do_pass()
        finally:
            for worker in run.workers.values():
                worker.close()
            self.sampler.free(range(self.sampler.slots))


class _Run:
    """The state of one run: its slots, its host threads, and the episodes that have finished."""

    def __init__(self, runner: Runner, between: Callable[[], None]):
        self.runner, self.sampler, self.statistics = runner, runner.sampler, runner.statistics
        self._between = between
        self.finished: collections.deque[RunningEpisode] = collections.deque()
        self._scheduler = SlotScheduler(self.sampler.slots)
        self._started = time.monotonic()
        self._asked: dict[SlotOwner, float] = {}  # when what an episode waits for was requested
        # A worker for each type of request or, where a model is named, for each name.
        search = functools.partial(
            answer_batch, runner.search, retries=runner.retries, cut_passages=runner.cut_passages
        )
        at_once = 1 if runner.wait_for_searches else runner.searches_at_once
        self.workers: dict[type | str, HostWorker] = {Retrieve: HostWorker("retrieval", search, at_once)}
        if runner.translator is not None:
            translate = functools.partial(answer_translations, runner.translator, retries=runner.retries)
            self.workers[Translate] = HostWorker("translation", translate)
        self.workers |= {name: HostWorker(name, completer) for name, completer in runner.completers.items()}

    def do_pass(self) -> None:
        """Does one pass of the loop at the top of this file."""
        sampler, scheduler = self.sampler, self._scheduler
        for worker in self.workers.values():
            worker.start()
        # Slots: free ones take waiting contexts, and contexts are brought up to date by one append.
        if slots := scheduler.make_room():
            self.statistics.evictions += len(slots)
            sampler.free(slots)
        forks = scheduler.admit()
        owners, ready = scheduler.owners, scheduler.ready
        if late := [slot for slot in ready if owners[slot].unsent]:
            dropping = {slot for slot in late if owners[slot].dropped}
            sampler.append({slot: owners[slot].take_unsent() for slot in late}, dropping)
        for source, targets in forks.items():
            if targets:
                sampler.fork(source, targets)
        if ready:
            sampler.begin({slot: self._parameters(request, owners[slot]) for slot, request in ready.items()})
            ready.clear()

        # The device decodes a block while host threads search, and programs continue with what was sampled.
        for slot, sampled in sampler.decode().items() if sampler.running else ():
            owner = owners[slot]
            self.statistics.written_tokens += len(sampled.tokens)
            if isinstance(owner, PendingRequest):
                sampler.free([scheduler.leave(owner)])
                finite = np.isfinite(sampled.log_probabilities).all()
                self._answer(owner, completion_of(sampled, self.runner.tokenizer) if finite else NOT_FINITE)
            else:
                assert isinstance(owner, RunningEpisode)
                self._end_wait(owner, owner, "generation")
                owner.sampled(sampled)  # its slot keeps the context, so the next turn appends to it
                self.dispatch(owner)

        # Without `wait_for_searches`, an idle device waits for the first batch; otherwise every pass waits for all. An
        # episode that has just finished is yielded first, however long the searches of others take.
        wait_for_all = self.runner.wait_for_searches
        idle = not (self.finished or sampler.running) and scheduler.stuck
        for worker in self.workers.values() if idle and not wait_for_all else ():
            worker.start()  # with what the latest block asked for
        running = [future for worker in self.workers.values() for _, future in worker.running]
        if running and (idle or wait_for_all):
            started = time.monotonic()
            until = futures.ALL_COMPLETED if wait_for_all else futures.FIRST_COMPLETED
            while not (done := futures.wait(running, WAIT_SECONDS, until))[0] or (wait_for_all and done[1]):
                self._between()
            self.statistics.retrieval_wait_seconds += time.monotonic() - started

        # Programs continue with the answers of host threads. All processes that run these episodes must get the same.
        for worker in self.workers.values():
            if worker.running:
                answers = compare_across_processes(
                    f"the {worker.name} service",
                    worker.collect,
                    lambda answers: [_as_programs_see(answer) for _, answer in answers],
                )
                for pending, answer in answers:
                    self._answer(pending, answer)

    def dispatch(self, episode: RunningEpisode) -> None:
        """Passes on the current requests of an episode."""
        if self.runner.watch is not None:
            self.runner.watch(episode)
        for pending in episode.take_pending():
            request = pending.request
            self._asked[pending] = time.monotonic()
            if not isinstance(request, Complete):
                if isinstance(request, Translate):
                    self.runner.check_translator(episode)
                self.workers[type(request)].ask(pending, request)
            elif request.model is None:
                self._scheduler.ask(pending, request)
            elif request.model in self.workers:
                self.workers[request.model].ask(pending, (pending.opening.text, self._parameters(request, pending)))
            else:
                raise UserError(
                    f"the program of {episode.name} asks the model {request.model!r}, but the runner has"
                    f" {', '.join(self.runner.completers) or 'none'} in addition to the policy: add it to"
                    " Runner.completers"
                )
        if episode.outcome is not None:
            if episode.slot is not None:
                self.sampler.free([self._scheduler.leave(episode)])
            self.finished.append(episode)
        elif (generate := episode.take_generation()) is not None:
            self._asked[episode] = time.monotonic()
            self._scheduler.ask(episode, generate)

    def _parameters(self, request: Generate | Complete, owner: SlotOwner) -> SamplingParameters:
        """Returns how to sample a request, with the random stream of its episode or completion.

        A stream is named by (seed, episode), and a token's random number also by its position. A completion has the
        number of its episode and a seed derived from its place among the episode's completions.
        """
        runner, stop = self.runner, request.stop
        if isinstance(owner, PendingRequest):
            episode, seed = owner.episode.number, derived_seed(runner.seed, owner.completion)
        else:
            assert isinstance(owner, RunningEpisode) and isinstance(request, Generate)
            episode, seed, stop = owner.number, runner.seed, owner.tokenizer.stops(request)
        return SamplingParameters(
            stop=stop,
            max_tokens=runner.max_tokens if request.max_tokens is None else request.max_tokens,
            temperature=runner.temperature if request.temperature is None else request.temperature,
            top_p=runner.top_p if request.top_p is None else request.top_p,
            seed=seed,
            episode=episode,
            unscaled_scores=isinstance(request, Complete),
        )

    def _answer(self, pending: PendingRequest, answer: Any) -> None:
        """Answers a request, unless its episode has ended because its context was full."""
        if pending.episode.outcome is None:
            self._end_wait(pending.episode, pending, _SERVICES[type(pending.request)])
            pending.answer(answer)
            self.dispatch(pending.episode)

    def _end_wait(self, episode: RunningEpisode, asked: SlotOwner, service: str) -> None:
        start, end = self._asked.pop(asked) - self._started, time.monotonic() - self._started
        episode.waits.append(Wait(len(episode.transcript.turns), service, start, end))


class SlotScheduler:
    """Assigns free slots to waiting completions first, then to waiting episodes, each in order of arrival.

    An episode waits for each completion, so completions never wait for episodes: if there are not enough slots,
    episodes that await a completion give theirs up, the shortest first. Their contexts are prefilled again when they
    continue. Any number of slots, even one, therefore serves any number of episodes.
    """

    def __init__(self, slots: int):
        self.owners: dict[int, SlotOwner] = {}  # slot -> the context in it
        self.ready: dict[int, Generate | Complete] = {}  # slot -> the request to start in it
        self._free = list(range(slots))
        # opening -> those that wait with it: a pass touches what it admits, of thousands that wait
        self._completions: dict[bytes, collections.deque[tuple[SlotOwner, Generate | Complete]]] = {}
        self._episodes: dict[bytes, collections.deque[tuple[SlotOwner, Generate | Complete]]] = {}

    def ask(self, owner: SlotOwner, request: Generate | Complete) -> None:
        """Schedules a request in the owner's slot, or in the next slot that it gets."""
        if owner.slot is not None:
            self.ready[owner.slot] = request
            return
        queues = self._completions if isinstance(owner, PendingRequest) else self._episodes
        opening = np.array(owner.unsent, np.int32).tobytes()
        queues.setdefault(opening, collections.deque()).append((owner, request))

    def leave(self, owner: SlotOwner) -> int:
        """Frees and returns the owner's slot."""
        assert owner.slot is not None
        del self.owners[owner.slot]
        heapq.heappush(self._free, owner.slot)
        return owner.slot

    def make_room(self) -> list[int]:
        """Evicts episodes that await a completion, as many as completions need slots; returns these slots."""
        missing = max(0, sum(map(len, self._completions.values())) - len(self._free))
        evicted = self._that_can_wait()[:missing] if missing else []
        slots = [self.leave(episode) for episode in evicted]
        for episode in evicted:
            episode.give_up_slot()
        return slots

    def _that_can_wait(self) -> list[RunningEpisode]:
        """Returns the episodes that await a completion, the shortest first."""
        owners = self.owners.values()
        waiting = (owner for owner in owners if isinstance(owner, RunningEpisode) and owner.awaits_completion)
        return sorted(waiting, key=lambda episode: (episode.transcript.length, episode.slot))

    @property
    def stuck(self) -> bool:
        """Whether nothing can begin before a host service answers."""
        waiting = bool(self._completions or self._episodes) and bool(self._free)
        return not (self.ready or waiting or (self._completions and self._that_can_wait()))

    def admit(self) -> dict[int, list[int]]:
        """Assigns free slots to waiting contexts; returns slot to prefill -> slots to fork from it.

        The head of the queue is always admitted, together with all others of the same opening, so a shared prompt is
        prefilled as rarely as possible. The order of admission changes no episode.
        """
        forks: dict[int, list[int]] = {}
        while self._free and (self._completions or self._episodes):
            opening, slots = next(iter(self._completions or self._episodes)), []
            for queue in (self._completions, self._episodes):
                same = queue.get(opening, ())
                while same and self._free:
                    owner, request = same.popleft()
                    if isinstance(owner, PendingRequest) and owner.episode.outcome is not None:
                        continue  # of an episode that has ended since
                    slot = owner.slot = heapq.heappop(self._free)
                    self.owners[slot], self.ready[slot] = owner, request
                    slots.append(slot)
                    if len(slots) > 1:
                        owner.take_unsent()  # copied with the slot
                if opening in queue and not same:
                    del queue[opening]
            if slots:
                forks[slots[0]] = slots[1:]
        return forks


def completion_of(sampled: Sampled, tokenizer: Tokenizer) -> Completion:
    """Returns a finished generation as programs see it."""
    ids, ends = sampled.tokens.tolist(), sampled.finish_reason == "eos"
    written = ids[:-1] if ends else ids
    # The text of each token; a character spread over several belongs to the last, and end-of-sequence is empty.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [
        decoder.decode(tokenizer.decode_bytes([token]), final=place == len(written) - 1)
        for place, token in enumerate(written)
    ]
    return Completion(
        text=sampled.text,
        finish_reason=sampled.finish_reason,
        tokens=len(ids),
        pieces=(*pieces, "") if ends else tuple(pieces),
        log_probabilities=tuple(sampled.log_probabilities.tolist()),
    )


def _as_programs_see(answer: Any) -> Any:
    """Returns the parts of an answer that an episode program reads: not scores, nor the reason of a failure."""
    if isinstance(answer, FoundPassages):
        return [[[(hit.title, hit.text) for hit in hits] for hits in languages] for languages in answer]
    if isinstance(answer, GenerationFailure | RetrievalFailure | TranslationFailure):
        return type(answer).__name__
    return answer.text if isinstance(answer, Completion) else answer
