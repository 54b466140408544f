"""One program on its way: its generator, its transcript, and what it waits for."""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from lcrag.data.questions import Question
from lcrag.episodes.context_text import ContextTokenizer, PlacedText
from lcrag.episodes.exchange import Aside, Exchange, Stream
from lcrag.episodes.record import EpisodeRecord, SideCompletion
from lcrag.episodes.requests import (
    Complete,
    Completion,
    ContextFull,
    FittedText,
    Generate,
    Observe,
    Outcome,
    Program,
    Request,
    RetrievalFailure,
    Retrieve,
    Translate,
)
from lcrag.episodes.transcript import Transcript
from lcrag.errors import UserError
from lcrag.sampling.generation import Sampled

Errand: TypeAlias = tuple[Exchange, int, Retrieve | Translate]  # the exchange, and which part of it, to be answered


class RunningEpisode:
    """Runs a program until it waits for the policy or an errand, and writes down what happens.

    Observations are fitted and kept in `unsent` until the next generation wants them in a slot. Of several parallel
    requests, observations and generations take place in the order asked; errands (searches and translations) and
    completions go out at once.

    Attributes:
      offered: Names of the tools that the program has offered the policy.

    Args:
      question: What is asked.
      program: A fresh episode program.
      number: Names the episode's random stream.
      tokenizer: Encodes what the environment writes.
      context: Tokens a slot holds.
      answer_room: Tokens kept free behind every observation, so that an answer can follow.
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
        self.counts = dict.fromkeys(("searches", "retrieval_failures", "generations", "policy_tokens"), 0)
        self.counts |= dict.fromkeys(("length_stops", "context_full", "completions", "completion_tokens"), 0)
        self.counts["retrieval_rounds"] = 0
        self._program, self._tokenizer = program, tokenizer
        self._context, self._answer_room = context, answer_room
        self._in_order: deque[tuple[int, Observe | Generate]] = deque()
        self._errands: list[Errand] = []
        self._asides: list[Aside] = []  # of the current exchange
        self._untaken_asides: list[Aside] = []
        self._completions: list[SideCompletion] = []
        self._generating = self._overfull = False
        self._finished = True
        self._exchange = Exchange(())

    @property
    def name(self) -> str:
        return f"question {self.question.dataset}/{self.question.id} ({self.question.language})"

    @property
    def room_tokens(self) -> int:
        """Tokens left in the context."""
        return self._context - self.transcript.length

    @property
    def awaits_completion(self) -> bool:
        """Whether it needs no slot until the policy has completed something beside it."""
        unanswered = (aside for aside in self._asides if aside.part not in self._exchange.answers)
        return not self._generating and any(aside.request.model is None for aside in unanswered)

    def give_up_slot(self) -> None:
        """Its slot is another's from now on; all it held is unsent again."""
        self.slot = None
        self.unsent = self.transcript.arrays()["tokens"].tolist()

    def take_generation(self) -> Generate | None:
        """The generation the program waits for, once."""
        request = self._in_order[0][1] if self._in_order else None
        if self._generating or not isinstance(request, Generate):
            return None
        self._generating = True
        return request

    def take_unsent(self) -> list[int]:
        """The observed tokens that are not in the slot yet."""
        taken, self.unsent = self.unsent, []
        return taken

    def take_errands(self) -> list[Errand]:
        """The searches and translations asked since the last call."""
        taken, self._errands = self._errands, []
        return taken

    def take_asides(self) -> list[Aside]:
        """The completions asked since the last call."""
        taken, self._untaken_asides = self._untaken_asides, []
        return taken

    def start(self) -> None:
        """Runs the program up to the first thing it waits for.

        Raises:
          UserError: its prompt does not fit the context.
        """
        self._send(functools.partial(next, self._program))
        self._run()

    def sampled(self, sampled: Sampled) -> None:
        """The generation it waited for is finished."""
        self._generating = False
        part, _ = self._in_order.popleft()
        self.transcript.generate(sampled)
        self.counts["generations"] += 1
        self.counts["policy_tokens"] += len(sampled.tokens)
        self.counts["length_stops"] += sampled.finish_reason == "length"
        self._exchange.answer(part, sampled.text)
        self._run()

    def returned(self, exchange: Exchange, part: int, answer: Any) -> None:
        """An errand is answered, or has failed."""
        self.counts["retrieval_failures"] += isinstance(answer, RetrievalFailure)
        exchange.answer(part, answer)
        self._run()

    def completed(self, aside: Aside, completion: Completion) -> None:
        """A completion it asked for is finished."""
        aside.exchange.answer(aside.part, completion)
        self._run()

    def record(self, policy_version: int) -> EpisodeRecord:
        """The episode, which has ended."""
        assert self.outcome is not None
        return EpisodeRecord(
            question=self.question,
            prompt=self.transcript.prompt,
            opening=tuple(self.transcript.opening),
            system=self.transcript.system,
            turns=tuple(self.transcript.turns),
            **self.transcript.arrays(),
            policy_version=policy_version,
            outcome=self.outcome,
            counts=self.counts | self.outcome.counts,
            finished=self._finished,
            episode=self.number,
            completions=tuple(self._completions),
        )

    def _run(self) -> None:
        """Carries out what needs no waiting, and goes on with the program as long as all is answered."""
        while self.outcome is None:
            self._carry_out()
            if self.outcome is not None or not self._exchange.complete:
                return
            self._note_completions()
            self._send(functools.partial(self._program.send, self._exchange.value))

    def _note_completions(self) -> None:
        """Writes down the completions of an exchange in the order asked, in whichever order they came."""
        for aside in self._asides:
            completion = self._exchange.answers[aside.part]
            self.counts["completion_tokens"] += completion.tokens
            self._completions.append(
                SideCompletion(aside.request.model, aside.opening.text, completion.text, completion.tokens)
            )

    def _carry_out(self) -> None:
        while (self._in_order or self._overfull) and self.outcome is None:
            if self._overfull:
                self._end_context()
                continue
            part, request = self._in_order[0]
            if isinstance(request, Generate):
                if self.room_tokens > 0:
                    return
                self._end_context()
            elif self._observe(request):
                self._in_order.popleft()
                self._exchange.answer(part, None)
            else:
                self._end_context()

    def _observe(self, request: Observe) -> bool:
        """Writes environment text if there is room for it and for an answer behind it."""
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
            self._refuse_prompt(len(placed.tokens))
        return False

    def _placed(
        self, text: str | FittedText, room: int, *, opens: bool, system: str | None = None
    ) -> PlacedText | None:
        """Text as it stands in a context; None if it adapts to its room and there is too little."""
        if isinstance(text, str):
            return self._tokenizer.place(text, opens=opens, system=system)
        return self._tokenizer.fit(text, room, opens=opens, system=system)

    def _refuse_prompt(self, tokens: int) -> None:
        raise UserError(
            f"the prompt of {self.name} has {self.transcript.length + tokens} tokens, but the context holds "
            f"{self._context} of which {self._answer_room} are kept for an answer: raise the sampler's context"
        )

    def _end_context(self) -> None:
        self.counts["context_full"] = 1
        self._finished = False
        self._send(functools.partial(self._program.throw, ContextFull()))

    def _send(self, resume: Callable[[], Request | tuple[Request, ...]]) -> None:
        """Resumes the program and takes up what it asks for next."""
        self._in_order.clear()
        self._untaken_asides, self._overfull = [], False
        with _named(self.name):
            try:
                self._take_up(resume())
            except StopIteration as stop:
                self.outcome = _outcome(stop.value)
            except ContextFull:
                self.outcome = Outcome(answer=None)

    def _take_up(self, asked: Request | tuple[Request, ...]) -> None:
        self._exchange, self._asides = Exchange(asked), []
        self.counts["retrieval_rounds"] += any(isinstance(request, Retrieve) for request in self._exchange.parts)
        for part, request in enumerate(self._exchange.parts):
            if isinstance(request, Retrieve | Translate):
                self.counts["searches"] += len(request.queries) if isinstance(request, Retrieve) else 0
                self._errands.append((self._exchange, part, request))
            elif isinstance(request, Complete):
                self._take_up_completion(part, request)
            elif isinstance(request, Generate) and not self.transcript.length and not self._in_order:
                raise ValueError("a program must observe something before the policy can continue it")
            elif isinstance(request, Observe | Generate):
                self._in_order.append((part, request))
            else:
                raise TypeError(f"a program asked for {request!r}, which is no request the runner serves")

    def _take_up_completion(self, part: int, request: Complete) -> None:
        self.counts["completions"] += 1
        opening = self._completion_opening(request)
        if opening is None:
            self._overfull = True
            return
        stream = Stream(self.number, self.counts["completions"])
        aside = Aside(self._exchange, part, request, stream, opening)
        self._asides.append(aside)
        self._untaken_asides.append(aside)

    def _completion_opening(self, request: Complete) -> PlacedText | None:
        """What the completion's context begins with; None if the policy's has no room for it."""
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
    """Errors of a program come with its question's name; a user's mistake is one sentence already."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f"in the episode program of {name}")
        raise


def _outcome(value: Any) -> Outcome:
    if not isinstance(value, Outcome):
        raise TypeError(f"an episode program must return an Outcome, not {value!r}")
    return value
