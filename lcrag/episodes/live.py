"""One program on its way: its generator, its transcript, and what it waits for."""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lcrag.data.questions import Question
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.record import EpisodeRecord
from lcrag.episodes.requests import (
    ContextFull,
    Generate,
    Observe,
    Outcome,
    Program,
    Request,
    RetrievalFailure,
    Retrieve,
)
from lcrag.episodes.transcript import Transcript
from lcrag.errors import UserError
from lcrag.sampling.generation import Sampled


class Exchange:
    """A request, or several in parallel, and the answers that have come."""

    def __init__(self, asked: Request | tuple[Request, ...]):
        self._single = not isinstance(asked, tuple)
        self.parts: tuple[Request, ...] = asked if isinstance(asked, tuple) else (asked,)
        self._answers: dict[int, Any] = {}

    def answer(self, part: int, value: Any) -> None:
        self._answers[part] = value

    @property
    def complete(self) -> bool:
        return len(self._answers) == len(self.parts)

    @property
    def value(self) -> Any:
        """What the program is sent: one answer, or a tuple of them in the order asked."""
        return self._answers[0] if self._single else tuple(self._answers[part] for part in range(len(self.parts)))


class LiveEpisode:
    """Runs a program until it waits for the policy or a search, and writes down what happens.

    Observations are fitted and kept in `unsent` until the next generation wants them in a slot. Of several parallel
    requests, observations and generations take place in the order asked; searches go out at once.

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
        self.question, self.number = question, number
        self.transcript = Transcript()
        self.unsent: list[int] = []
        self.slot: int | None = None
        self.outcome: Outcome | None = None
        self.counts = dict.fromkeys(("searches", "retrieval_failures", "generations", "policy_tokens"), 0)
        self.counts |= {"length_stops": 0, "context_full": 0}
        self._program, self._tokenizer = program, tokenizer
        self._context, self._answer_room = context, answer_room
        self._in_order: deque[tuple[int, Observe | Generate]] = deque()
        self._searches: list[tuple[Exchange, int, Retrieve]] = []
        self._generating = False
        self._finished = True
        self._exchange = Exchange(())

    @property
    def name(self) -> str:
        return f"question {self.question.dataset}/{self.question.id} ({self.question.language})"

    @property
    def room_tokens(self) -> int:
        """Tokens left in the context."""
        return self._context - self.transcript.length

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

    def take_searches(self) -> list[tuple[Exchange, int, Retrieve]]:
        """The searches asked since the last call, with the exchange and the part of it that each answers."""
        taken, self._searches = self._searches, []
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

    def searched(self, exchange: Exchange, part: int, answer: Any) -> None:
        """A search is answered, or has failed."""
        self.counts["retrieval_failures"] += isinstance(answer, RetrievalFailure)
        exchange.answer(part, answer)
        self._run()

    def record(self, policy_version: int) -> EpisodeRecord:
        """The episode, which has ended."""
        assert self.outcome is not None
        return EpisodeRecord(
            question=self.question,
            prompt=self.transcript.prompt,
            turns=tuple(self.transcript.turns),
            **self.transcript.arrays(),
            policy_version=policy_version,
            outcome=self.outcome,
            counts=self.counts,
            finished=self._finished,
            episode=self.number,
        )

    def _run(self) -> None:
        """Carries out what needs no waiting, and goes on with the program as long as all is answered."""
        while self.outcome is None:
            self._carry_out()
            if self.outcome is not None or not self._exchange.complete:
                return
            self._send(functools.partial(self._program.send, self._exchange.value))

    def _carry_out(self) -> None:
        while self._in_order and self.outcome is None:
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
        room = self.room_tokens - self._answer_room
        text = request.text if isinstance(request.text, str) else request.text.fit(self._tokenizer, room)
        if text is None:
            return False
        text, tokens = self._placed(text)
        if len(tokens) <= room:
            self.transcript.observe(text, tokens)
            self.unsent.extend(tokens)
            return True
        if not self.transcript.turns:
            self._refuse_prompt(len(tokens))
        return False

    def _placed(self, text: str) -> tuple[str, Sequence[int]]:
        """The text as it stands in the context, and its tokens."""
        if self.transcript.length:
            return text, self._tokenizer.encode(text)
        opening = self._tokenizer.opening(text)
        return opening.text, opening.ids

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
        with _named(self.name):
            try:
                self._take_up(resume())
            except StopIteration as stop:
                self.outcome = _outcome(stop.value)
            except ContextFull:
                self.outcome = Outcome(answer=None)

    def _take_up(self, asked: Request | tuple[Request, ...]) -> None:
        self._exchange = Exchange(asked)
        for part, request in enumerate(self._exchange.parts):
            if isinstance(request, Retrieve):
                self.counts["searches"] += len(request.queries)
                self._searches.append((self._exchange, part, request))
            elif isinstance(request, Generate) and not self.transcript.length and not self._in_order:
                raise ValueError("a program must observe something before the policy can continue it")
            elif isinstance(request, Observe | Generate):
                self._in_order.append((part, request))
            else:
                raise TypeError(f"a program asked for {request!r}, which is no request the runner serves")


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
