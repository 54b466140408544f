"""A running episode: its generator, its transcript, and the requests that it waits for.

`lcrag.episodes.runner` decides when and where requests are served; this module knows what they mean for an episode.
"""

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes.chat import ContextTokenizer, PlacedText
from lcrag.episodes.programs import (
    Complete,
    ContextFull,
    FittedText,
    FoundPassages,
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
    hits_of,
)
from lcrag.episodes.record import PROMPT_TURN, EpisodeRecord, SideCompletion, Turn, Wait
from lcrag.episodes.tags import neutralise
from lcrag.errors import UserError
from lcrag.rewards.matching import holds_answer
from lcrag.sampling import Sampled

NOT_FINITE = GenerationFailure("the policy gave probabilities that are not finite: its weights are damaged")
COUNTERS = (
    *("searches", "retrieval_failures", "generations", "policy_tokens", "length_stops", "context_full"),
    *("completions", "completion_tokens", "retrieval_rounds", "empty_turns", "answer_retrieved", "answer_shown"),
)


@functools.cache
def derived_seed(seed: int, number: int) -> int:
    """Returns a 32-bit seed for the n-th completion of every episode, independent of the run's."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


class Transcript:
    """The texts and tokens of an episode so far: who wrote what, token by token.

    The arrays of the record are built from the pieces as they were written. A sampled token is never decoded and
    encoded again, because another tokenization of the same text has other probabilities.
    """

    def __init__(self):
        self.prompt = ""
        self.opening: list[str] = []
        self.system: str | None = None
        self.turns: list[Turn] = []
        self.length = 0
        self.end: int | None = None  # the latest token, if it is an end of sequence that the policy sampled
        self.temperatures: set[float] = set()  # at which the policy's turns were sampled
        self._pieces: list[tuple[np.ndarray, np.ndarray | None, int]] = []  # tokens, scores of the policy's, turn

    def observe(self, placed: PlacedText) -> None:
        """Adds environment text; before the policy's first turn it belongs to the prompt."""
        if self.turns:
            self.turns.append(Turn("environment", placed.written))
        else:
            self.prompt += placed.text
            self.opening.append(placed.written)
            self.system = self.system or placed.system
        self._add(placed.tokens, None, len(self.turns) - 1 if self.turns else PROMPT_TURN)

    def generate(self, sampled: Sampled) -> None:
        """Adds a turn that the policy sampled."""
        self.turns.append(Turn("policy", sampled.text))
        self.temperatures |= set() if sampled.temperature is None else {sampled.temperature}
        self._add(sampled.tokens, sampled.log_probabilities, len(self.turns) - 1)
        self.end = int(sampled.tokens[-1]) if sampled.finish_reason == "eos" else None

    def drop_end(self) -> None:
        """Removes the end of sequence that the policy has just sampled."""
        tokens, scores, turn = self._pieces.pop()
        assert self.end is not None and scores is not None
        self.length -= len(tokens)
        self._add(tokens[:-1], scores[:-1], turn)
        self.end = None

    def _add(self, tokens: Any, log_probabilities: np.ndarray | None, turn: int) -> None:
        if len(tokens):
            self._pieces.append((np.asarray(tokens, np.int32), log_probabilities, turn))
            self.length += len(tokens)
            self.end = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns `tokens`, `by_policy`, `log_probabilities` and `turn` of an `EpisodeRecord`."""
        # An empty piece of the environment gives the arrays their types if nothing has been written yet.
        tokens, scores, turns = zip((np.empty(0, np.int32), None, 0), *self._pieces, strict=True)
        lengths = [len(piece) for piece in tokens]
        scored = [np.zeros(n) if piece is None else piece for n, piece in zip(lengths, scores, strict=True)]
        return {
            "tokens": np.concatenate(tokens),
            "by_policy": np.repeat([piece is not None for piece in scores], lengths),
            "log_probabilities": np.concatenate(scored, dtype=np.float32, casting="unsafe"),
            "turn": np.repeat(np.array(turns, np.int32), lengths),
        }


class SlotOwner:
    """A context that the policy continues in a slot: an episode's, or that of a completion."""

    slot: int | None = None  # the slot that holds it; None: none yet, or it has been given up
    dropped = False  # whether the last token in the slot is no longer part of the context
    unsent: list[int]  # tokens at its end that are not in the slot yet

    def take_unsent(self) -> list[int]:
        """Returns the unsent tokens, once; the caller appends them to the slot."""
        taken, self.unsent, self.dropped = self.unsent, [], False
        return taken


@dataclasses.dataclass(eq=False)
class PendingRequest(SlotOwner):
    """A search, translation or completion that an episode waits for."""

    request: Retrieve | Translate | Complete
    episode: "RunningEpisode"
    answers: dict[int, Any]  # to the requests that the program yielded together
    place: int  # of this one's among them
    completion: int = 0  # number of a completion within its episode, from 1, which selects its random numbers; else 0
    opening: PlacedText = PlacedText("", (), "")  # of a completion; without tokens if another model completes it

    def __post_init__(self):
        self.unsent = list(self.opening.tokens)

    def answer(self, value: Any) -> None:
        """Records the answer; the program resumes if it waits for nothing else."""
        self.answers[self.place] = value
        self.episode.answered(value)


class RunningEpisode(SlotOwner):
    """Runs a program until it waits for a generation or an answer, and records what happens.

    Observations are fitted and kept in `unsent` until the next generation needs them in a slot. Of several parallel
    requests, observations and generations are handled in the order requested; searches, translations and completions
    become `PendingRequest`s immediately.

    Args:
      number: Selects the episode's random stream.
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
        self.question, self.number, self.context = question, number, context
        self.transcript, self.unsent = Transcript(), []
        self.outcome: Outcome | None = None  # None while the program runs
        self.offered: set[str] = set()  # tools that the program has offered the policy
        self.waits: list[Wait] = []
        self.counts = dict.fromkeys(COUNTERS, 0)
        self._program, self.tokenizer, self._answer_room = program, tokenizer, answer_room
        # The requests that the program has yielded together, and the answers received so far, by place.
        self._asked: Request | tuple[Request, ...] = ()
        self._answers: dict[int, Any] = {}
        self._in_order: deque[tuple[int, Observe | Generate]] = deque()  # those of the requests still to be handled
        self._new_requests: list[PendingRequest] = []
        self._completing: list[tuple[Complete, PendingRequest]] = []  # completions among the requests
        self._completions: list[SideCompletion] = []
        self._generating = self._overfull = False
        self._finished = True
        self._failure: str | None = None

    @property
    def name(self) -> str:
        return f"question {self.question.dataset}/{self.question.id} ({self.question.language})"

    @property
    def awaits_completion(self) -> bool:
        """Whether it waits for a completion by the policy, and needs no slot until then."""
        unanswered = (complete for complete, pending in self._completing if pending.place not in self._answers)
        return not self._generating and any(complete.model is None for complete in unanswered)

    def give_up_slot(self) -> None:
        """Frees its slot; the whole context becomes unsent again."""
        self.slot, self.dropped = None, False
        self.unsent = self.transcript.arrays()["tokens"].tolist()

    def take_generation(self) -> Generate | None:
        """Returns the generation that the program waits for, once."""
        request = self._in_order[0][1] if self._in_order else None
        if self._generating or not isinstance(request, Generate):
            return None
        self._generating = True
        return request

    def take_pending(self) -> list[PendingRequest]:
        """Returns the requests made since the last call."""
        taken, self._new_requests = self._new_requests, []
        return taken

    def start(self) -> None:
        """Runs the program up to the first request that it waits for; raises a UserError if its prompt is too long."""
        self._resume(self._program.send, None)
        self._run()

    def sampled(self, sampled: Sampled) -> None:
        """Resumes the program with the finished generation that it waited for."""
        self._generating = False
        place, request = self._in_order.popleft()
        assert isinstance(request, Generate)
        self.transcript.generate(sampled)
        self.counts["generations"] += 1
        self.counts["policy_tokens"] += len(sampled.tokens)
        self.counts["empty_turns"] += not sampled.text.strip()
        self.counts["length_stops"] += sampled.finish_reason == "length"
        finite = np.isfinite(sampled.log_probabilities).all()
        self._answers[place] = self.tokenizer.read(sampled.text, request) if finite else NOT_FINITE
        self._run()

    def answered(self, answer: Any) -> None:
        """Resumes the program after a pending request has been answered."""
        if isinstance(answer, RetrievalFailure):  # shown to the policy, which goes on, but not learned from
            self.counts["retrieval_failures"] += 1
            self._failure = self._failure or f"a search failed: {answer.reason}"
        elif isinstance(answer, FoundPassages) and not self.counts["answer_retrieved"]:
            held = holds_answer((f"{hit.title} {hit.text}" for hit in hits_of(answer)), self.question.answers)
            self.counts["answer_retrieved"] = int(held)
        self._run()

    def record(self, policy_version: int = 0) -> EpisodeRecord:
        """Returns the record of the finished episode."""
        assert self.outcome is not None
        if self.counts["answer_retrieved"]:  # a question may name its own answer
            asked = neutralise(self.question.text)
            prompts = (*self.transcript.opening, *(completion.prompt for completion in self._completions))
            observed = (turn.text for turn in self.transcript.turns if turn.by == "environment")
            texts = itertools.chain(observed, (prompt.replace(asked, " ") for prompt in prompts))
            self.counts["answer_shown"] = int(holds_answer(texts, self.question.answers))
        return EpisodeRecord(
            question=self.question,
            prompt=self.transcript.prompt,
            opening=tuple(self.transcript.opening),
            system=self.transcript.system,
            turns=tuple(self.transcript.turns),
            **self.transcript.arrays(),
            policy_version=policy_version,
            temperatures=tuple(sorted(self.transcript.temperatures)),
            outcome=self.outcome,
            counts=self.counts | self.outcome.counts,
            finished=self._finished,
            episode=self.number,
            failure=self._failure,
            completions=tuple(self._completions),
            waits=tuple(self.waits),
        )

    def _run(self) -> None:
        """Handles observations in order, and resumes the program whenever every request is answered."""
        while self.outcome is None:
            # What must happen in order: observations at once, and the first generation stops here until it is sampled.
            while (self._in_order or self._overfull) and self.outcome is None:
                place, request = self._in_order[0] if self._in_order else (0, None)
                if not self._overfull and isinstance(request, Generate) and self.transcript.length < self.context:
                    return
                if not self._overfull and isinstance(request, Observe) and self._observe(request):
                    self._in_order.popleft()
                    self._answers[place] = None
                else:
                    self.counts["context_full"] = 1
                    self._finished = False
                    self._resume(self._program.throw, ContextFull())
            answers, asked = self._answers, self._asked
            if self.outcome is not None or len(answers) < (len(asked) if isinstance(asked, tuple) else 1):
                return
            # Completions are recorded in the order requested, whatever the order of their answers.
            for complete, pending in self._completing:
                completion, opening = answers[pending.place], pending.opening
                if isinstance(completion, GenerationFailure):
                    continue
                self.counts["completion_tokens"] += completion.tokens
                side = SideCompletion(
                    model=complete.model,
                    prompt=opening.text,
                    text=completion.text,
                    tokens=completion.tokens,
                    opening="" if opening.written == opening.text else opening.written,
                    prompt_tokens=len(opening.tokens),
                )
                self._completions.append(side)
            if failed := [answer for answer in answers.values() if isinstance(answer, GenerationFailure)]:
                self._resume(self._program.throw, GenerationFailed(failed[0].reason))
            else:
                value = tuple(answers[n] for n in range(len(answers))) if isinstance(asked, tuple) else answers[0]
                self._resume(self._program.send, value)

    def _observe(self, request: Observe) -> bool:
        """Adds environment text if it leaves room for an answer; returns whether it does.

        An end of sequence that the policy sampled just before did not end the episode, and is dropped unless it is the
        end of a turn in messages.
        """
        self.offered.update(request.tools)
        transcript, tokenizer = self.transcript, self.tokenizer
        replies = tokenizer.role is not None and bool(transcript.turns) and transcript.turns[-1].by == "policy"
        closed = replies and transcript.end is not None and transcript.end == tokenizer.end_of_turn
        dropping = transcript.end is not None and not closed
        room = self.context - self.transcript.length - self._answer_room + dropping
        how = {"opens": not transcript.length, "system": request.system, "offers": request.tools}
        placed = self._placed(request.text, room, **how, replies=replies, closed=closed)
        if placed is not None and len(placed.tokens) <= room:
            if dropping and placed.tokens:
                self.transcript.drop_end()
                self.counts["policy_tokens"] -= 1
                if self.slot is None:  # given up: the whole context is unsent
                    self.unsent.pop()
                else:
                    self.dropped = True
            self.transcript.observe(placed)
            self.unsent.extend(placed.tokens)
            return True
        if placed is not None and not self.transcript.turns:
            raise UserError(
                f"the prompt of {self.name} has at least {self.transcript.length + len(placed.tokens)} tokens, but the"
                f" context holds {self.context} of which {self._answer_room} are kept for an answer: raise the"
                " sampler's context"
            )
        return False

    def _placed(self, text: str | FittedText, room: int, **how: Any) -> PlacedText | None:
        """Returns text with its tokens; None if a `FittedText` does not fit into `room` tokens."""
        if isinstance(text, str):  # of one that cannot fit, enough is encoded not to fit
            return self.tokenizer.place(text[: self.tokenizer.max_characters(self.context) + 1], **how)
        return self.tokenizer.fit(text, room, **how)

    def _resume(self, resume: Callable[[Any], Request | tuple[Request, ...]], value: Any) -> None:
        """Resumes the program and sorts its next requests; drops completions not yet taken, keeps other requests."""
        self._in_order.clear()
        self._new_requests = [pending for pending in self._new_requests if not isinstance(pending.request, Complete)]
        self._overfull = False
        try:
            try:
                asked = resume(value)
            except StopIteration as stop:
                if not isinstance(stop.value, Outcome):
                    raise TypeError(f"an episode program must return an Outcome, not {stop.value!r}") from None
                self.outcome = stop.value
                return
            except ContextFull:
                self.outcome = Outcome(answer=None)
                return
            except GenerationFailed as failed:
                self.outcome, self._failure, self._finished = Outcome(answer=None), str(failed), False
                return
            self._asked, self._answers, self._completing = asked, {}, []
            requests = asked if isinstance(asked, tuple) else (asked,)
            self.counts["retrieval_rounds"] += any(isinstance(request, Retrieve) for request in requests)
            for place, request in enumerate(requests):
                if isinstance(request, Retrieve | Translate):
                    self.counts["searches"] += len(request.queries) if isinstance(request, Retrieve) else 0
                    self._new_requests.append(PendingRequest(request, self, self._answers, place))
                elif isinstance(request, Complete):
                    self._take_completion(place, request)
                elif isinstance(request, Generate) and not self.transcript.length and not self._in_order:
                    raise ValueError("a program must observe something before the policy can continue it")
                elif isinstance(request, Observe | Generate):
                    self._in_order.append((place, request))
                else:
                    raise TypeError(f"a program yielded {request!r}, which is not a request that the runner serves")
        except UserError:
            raise
        except Exception as error:
            error.add_note(f"in the episode program of {self.name}")
            raise

    def _take_completion(self, place: int, request: Complete) -> None:
        """Encodes the beginning of a completion's context; if the policy's context has no room, the episode is full."""
        self.counts["completions"] += 1
        if request.model is None:
            room = self.context - self._answer_room
            placed = self._placed(request.prompt, room, opens=True)
            if placed is not None and not placed.tokens:
                raise ValueError("a completion needs a prompt of at least one token")
            if placed is None or len(placed.tokens) > room:
                self._overfull = True
                return
            opening = placed
        elif isinstance(request.prompt, str):
            opening = PlacedText(request.prompt, (), request.prompt)
        else:
            raise TypeError(f"the prompt of the model {request.model!r} must be a text, not {request.prompt!r}")
        pending = PendingRequest(request, self, self._answers, place, self.counts["completions"], opening)
        self._completing.append((request, pending))
        self._new_requests.append(pending)
