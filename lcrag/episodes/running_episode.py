"""A running episode: its generator, its transcript, and the requests that it waits for."""

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes.context_text import ContextTokenizer, PlacedText
from lcrag.episodes.record import EpisodeRecord, SideCompletion, Transcript, Wait, sampled_by
from lcrag.episodes.requests import (
    Complete,
    ContextFull,
    FittedText,
    Generate,
    GenerationFailed,
    GenerationFailure,
    Observe,
    Outcome,
    Program,
    Request,
    RetrievalFailure,
    Retrieve,
    Translate,
)
from lcrag.errors import UserError
from lcrag.sampling import Sampled

_NO_TEXT = PlacedText("", (), "")


@dataclasses.dataclass(frozen=True)
class Stream:
    """Identifies the random stream of one context.

    Attributes:
      episode: Number of the episode.
      completion: Number of a completion within its episode, from 1; 0 is the episode's own context.
    """

    episode: int
    completion: int = 0

    def seed(self, seed: int) -> int:
        """Returns the seed of this stream: a run's own for an episode's context, a derived one for a completion."""
        return derived_seed(seed, self.completion) if self.completion else seed


@functools.cache
def derived_seed(seed: int, completion: int) -> int:
    """Returns a 32-bit seed for the n-th completion of every episode, independent of the run's."""
    return int(np.random.SeedSequence((seed, completion)).generate_state(1)[0])


NOT_FINITE = GenerationFailure("the policy gave probabilities that are not finite: its weights are damaged")


def is_finite(sampled: Sampled) -> bool:
    """Whether every log-probability of a generation is a number."""
    return bool(np.isfinite(sampled.log_probabilities).all())


class _Exchange:
    """A request, or several in parallel, and the answers received."""

    def __init__(self, asked: Request | tuple[Request, ...]):
        self._single = not isinstance(asked, tuple)
        self.parts: tuple[Request, ...] = asked if isinstance(asked, tuple) else (asked,)
        self.answers: dict[int, Any] = {}

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self.parts)

    @property
    def failure(self) -> GenerationFailure | None:
        """The first failure of another model among the answers."""
        return next((each for each in self.answers.values() if isinstance(each, GenerationFailure)), None)

    @property
    def value(self) -> Any:
        """The value sent to the program: one answer, or a tuple of answers in the order requested."""
        return self.answers[0] if self._single else tuple(self.answers[part] for part in range(len(self.parts)))


@dataclasses.dataclass(frozen=True, eq=False)
class PendingRequest:
    """A search, translation or completion that an episode waits for.

    Attributes:
      request: The request.
      episode: The episode that waits.
      stream: Names the random numbers of a completion.
      opening: Prompt of a completion with its tokens; without tokens if another model completes it.
    """

    request: Retrieve | Translate | Complete
    episode: "RunningEpisode"
    stream: Stream
    opening: PlacedText
    _exchange: _Exchange
    _part: int

    def answer(self, value: Any) -> None:
        """Records the answer; the program resumes if it waits for nothing else."""
        self._exchange.answers[self._part] = value
        self.episode.answered(value)


class RunningEpisode:
    """Runs a program until it waits for a generation or an answer, and records what happens.

    Observations are fitted and kept in `unsent` until the next generation needs them in a slot. Of several parallel
    requests, observations and generations are handled in the order requested; searches, translations and completions
    become `PendingRequest`s immediately.

    Attributes:
      offered: Names of the tools that the program has offered the policy.
      waits: Its waits so far.
      versions: (length, version) of each policy that samples it, with the length of the context when it began.

    Args:
      question: The question.
      program: A fresh episode program.
      number: Selects the episode's random stream.
      tokenizer: Encodes environment text.
      context: Size of a slot, in tokens.
      answer_room: Tokens kept free after every observation, for an answer.
    """

    def __init__(
        self,
        question: Question,
        program: Program,
        number: int,
        tokenizer: ContextTokenizer,
        context: int,
        answer_room: int,
    ):
        self.question, self.number, self.stream = question, number, Stream(number)
        self.transcript = Transcript()
        self.unsent: list[int] = []
        self.slot: int | None = None
        self.outcome: Outcome | None = None
        self.offered: set[str] = set()
        self.waits: list[Wait] = []
        self.versions: list[tuple[int, int]] = [(0, 0)]
        self.counts = dict.fromkeys(("searches", "retrieval_failures", "generations", "policy_tokens"), 0)
        self.counts |= dict.fromkeys(("length_stops", "context_full", "completions", "completion_tokens"), 0)
        self.counts["retrieval_rounds"] = 0
        self._program, self._tokenizer = program, tokenizer
        self._context, self._answer_room = context, answer_room
        self._most_characters = tokenizer.most_characters(context)
        self._in_order: deque[tuple[int, Observe | Generate]] = deque()
        self._untaken: list[PendingRequest] = []
        self._completing: list[tuple[int, Complete, PlacedText]] = []  # completions of the current exchange
        self._completions: list[SideCompletion] = []
        self._generating = self._overfull = False
        self._finished = True
        self._failure: str | None = None
        self._exchange = _Exchange(())

    @property
    def name(self) -> str:
        return f"question {self.question.dataset}/{self.question.id} ({self.question.language})"

    @property
    def room_tokens(self) -> int:
        """Tokens left in the context."""
        return self._context - self.transcript.length

    @property
    def awaits_completion(self) -> bool:
        """Whether it waits for a completion by the policy, and needs no slot until then."""
        unanswered = (request for part, request, _ in self._completing if part not in self._exchange.answers)
        return not self._generating and any(request.model is None for request in unanswered)

    def give_up_slot(self) -> None:
        """Frees its slot; the whole context becomes unsent again."""
        self.slot = None
        self.unsent = self.transcript.arrays()["tokens"].tolist()

    @property
    def sent(self) -> list[int]:
        """The tokens in its slot, without those of a running generation."""
        return self.transcript.arrays()["tokens"].tolist()[: self.transcript.length - len(self.unsent)]

    def take_generation(self) -> Generate | None:
        """Returns the generation that the program waits for, once."""
        request = self._in_order[0][1] if self._in_order else None
        if self._generating or not isinstance(request, Generate):
            return None
        self._generating = True
        return request

    def take_unsent(self) -> list[int]:
        """Returns the observed tokens that are not in the slot yet, once."""
        taken, self.unsent = self.unsent, []
        return taken

    def take_pending(self) -> list[PendingRequest]:
        """Returns the requests made since the last call."""
        taken, self._untaken = self._untaken, []
        return taken

    def start(self) -> None:
        """Runs the program up to the first request that it waits for.

        Raises:
          UserError: its prompt does not fit the context.
        """
        self._send(functools.partial(next, self._program))
        self._run()

    def sampled(self, sampled: Sampled) -> None:
        """Resumes the program with the finished generation that it waited for."""
        self._generating = False
        part, _ = self._in_order.popleft()
        self.transcript.generate(sampled)
        self.counts["generations"] += 1
        self.counts["policy_tokens"] += len(sampled.tokens)
        self.counts["length_stops"] += sampled.finish_reason == "length"
        self._exchange.answers[part] = sampled.text if is_finite(sampled) else NOT_FINITE
        self._run()

    def answered(self, answer: Any) -> None:
        """Resumes the program after a pending request has been answered."""
        if isinstance(answer, RetrievalFailure):  # shown to the policy, which goes on, but not learned from
            self.counts["retrieval_failures"] += 1
            self._failure = self._failure or f"a search failed: {answer.reason}"
        self._run()

    def record(self) -> EpisodeRecord:
        """Returns the record of the finished episode."""
        assert self.outcome is not None
        arrays = self.transcript.arrays()
        first, *changes = sampled_by(self.versions, arrays["by_policy"])
        return EpisodeRecord(
            question=self.question,
            prompt=self.transcript.prompt,
            opening=tuple(self.transcript.opening),
            system=self.transcript.system,
            turns=tuple(self.transcript.turns),
            **arrays,
            policy_version=first[1],
            policy_changes=tuple(changes),
            outcome=self.outcome,
            counts=self.counts | self.outcome.counts,
            finished=self._finished,
            episode=self.number,
            failure=self._failure,
            completions=tuple(self._completions),
            waits=tuple(self.waits),
        )

    def _run(self) -> None:
        """Handles observations and resumes the program while every request is answered."""
        while self.outcome is None:
            self._carry_out()
            if self.outcome is not None or not self._exchange.complete:
                return
            self._record_completions()
            if (failure := self._exchange.failure) is None:
                self._send(functools.partial(self._program.send, self._exchange.value))
            else:
                self._send(functools.partial(self._program.throw, GenerationFailed(failure.reason)))

    def _record_completions(self) -> None:
        """Records the completions of an exchange in the order requested, whatever the order of their answers."""
        for part, request, opening in self._completing:
            completion = self._exchange.answers[part]
            if isinstance(completion, GenerationFailure):
                continue
            self.counts["completion_tokens"] += completion.tokens
            written = "" if opening.written == opening.text else opening.written
            self._completions.append(
                SideCompletion(
                    request.model, opening.text, completion.text, completion.tokens, written, len(opening.tokens)
                )
            )

    def _carry_out(self) -> None:
        while (self._in_order or self._overfull) and self.outcome is None:
            if self._overfull:
                self._end_context()
                continue
            part, request = self._in_order[0]
            if isinstance(request, Generate) and self.room_tokens > 0:
                return
            if isinstance(request, Observe) and self._observe(request):
                self._in_order.popleft()
                self._exchange.answers[part] = None
            else:
                self._end_context()

    def _observe(self, request: Observe) -> bool:
        """Adds environment text if it leaves room for an answer; returns whether it does."""
        self.offered.update(request.tools)
        room = self.room_tokens - self._answer_room
        placed = self._placed(request.text, room, opens=not self.transcript.length, system=request.system)
        if placed is None:
            return False
        if len(placed.tokens) <= room:
            self.transcript.observe(placed)
            self.unsent.extend(placed.tokens)
            return True
        if not self.transcript.turns:
            raise UserError(
                f"the prompt of {self.name} has at least {self.transcript.length + len(placed.tokens)} tokens, but the"
                f" context holds {self._context} of which {self._answer_room} are kept for an answer: raise the"
                " sampler's context"
            )
        return False

    def _placed(
        self, text: str | FittedText, room: int, *, opens: bool, system: str | None = None
    ) -> PlacedText | None:
        """Returns text with its tokens; None if a `FittedText` does not fit into `room` tokens."""
        if isinstance(text, str):  # of one that cannot fit, enough is encoded not to fit
            return self._tokenizer.place(text[: self._most_characters + 1], opens=opens, system=system)
        return self._tokenizer.fit(text, room, opens=opens, system=system)

    def _end_context(self) -> None:
        self.counts["context_full"] = 1
        self._finished = False
        self._send(functools.partial(self._program.throw, ContextFull()))

    def _send(self, resume: Callable[[], Request | tuple[Request, ...]]) -> None:
        """Resumes the program and handles its next requests; drops completions not yet taken, keeps other requests."""
        self._in_order.clear()
        self._untaken = [each for each in self._untaken if not isinstance(each.request, Complete)]
        self._overfull = False
        with _named(self.name):
            try:
                self._take_up(resume())
            except StopIteration as stop:
                if not isinstance(stop.value, Outcome):
                    raise TypeError(f"an episode program must return an Outcome, not {stop.value!r}") from None
                self.outcome = stop.value
            except ContextFull:
                self.outcome = Outcome(answer=None)
            except GenerationFailed as failed:
                self.outcome, self._failure, self._finished = Outcome(answer=None), str(failed), False

    def _take_up(self, asked: Request | tuple[Request, ...]) -> None:
        self._exchange, self._completing = _Exchange(asked), []
        self.counts["retrieval_rounds"] += any(isinstance(request, Retrieve) for request in self._exchange.parts)
        for part, request in enumerate(self._exchange.parts):
            if isinstance(request, Retrieve | Translate):
                self.counts["searches"] += len(request.queries) if isinstance(request, Retrieve) else 0
                self._untaken.append(PendingRequest(request, self, self.stream, _NO_TEXT, self._exchange, part))
            elif isinstance(request, Complete):
                self._take_up_completion(part, request)
            elif isinstance(request, Generate) and not self.transcript.length and not self._in_order:
                raise ValueError("a program must observe something before the policy can continue it")
            elif isinstance(request, Observe | Generate):
                self._in_order.append((part, request))
            else:
                raise TypeError(f"a program yielded {request!r}, which is not a request that the runner serves")

    def _take_up_completion(self, part: int, request: Complete) -> None:
        self.counts["completions"] += 1
        opening = self._completion_opening(request)
        if opening is None:
            self._overfull = True
            return
        stream = Stream(self.number, self.counts["completions"])
        self._completing.append((part, request, opening))
        self._untaken.append(PendingRequest(request, self, stream, opening, self._exchange, part))

    def _completion_opening(self, request: Complete) -> PlacedText | None:
        """Returns the beginning of the completion's context; None if the policy's context has no room for it."""
        if request.model is not None:
            if not isinstance(request.prompt, str):
                raise TypeError(f"the prompt of the model {request.model!r} must be a text, not {request.prompt!r}")
            return PlacedText(request.prompt, (), request.prompt)
        room = self._context - self._answer_room
        placed = self._placed(request.prompt, room, opens=True)
        if placed is not None and not placed.tokens:
            raise ValueError("a completion needs a prompt of at least one token")
        return placed if placed is not None and len(placed.tokens) <= room else None


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Adds the question's name to errors of a program, except to a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f"in the episode program of {name}")
        raise
