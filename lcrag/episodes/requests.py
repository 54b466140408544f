"""The requests that an episode program may yield, and the outcome that it returns.

A program is a generator: it yields requests and is sent their answers. It does not know of batching, slots, devices or
masks.
"""

import dataclasses
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class TextTokenizer(Protocol):
    """Encodes and decodes text, to fit it into a number of tokens."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@runtime_checkable
class FoundPassage(Protocol):
    """A hit of a search, as episodes see it."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


@runtime_checkable
class FittedText(Protocol):
    """Environment text that adapts to the room in the context."""

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the text in at most `room_tokens` tokens; None if it does not fit."""


@dataclasses.dataclass(frozen=True)
class Observe:
    """Appends environment text to this episode's context. Answer: None.

    The first one is the opening prompt: a model with a chat template gets it as the user's turn. If the text does not
    fit the rest of the context, `ContextFull` is raised in the program instead.

    """

    text: str | FittedText
    # The method's instructions, in the first one only: the system message for a model with a chat template, otherwise
    # placed before the text.
    system: str | None = None
    # Tools that the text offers the policy; a runner that lacks one rejects the program before anything is sampled.
    tools: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
    """Lets the policy continue this episode's context.

    Answer: `str`, the sampled text up to and including the stop string that ended it, without the rest of that token.
    None stands for the run's default.
    """

    stop: tuple[str, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None


@dataclasses.dataclass(frozen=True)
class Retrieve:
    """Searches every query in every named language's collection.

    Answer: `FoundPassages`, for each query, for each language in the order given, the hits, best first; or
    `RetrievalFailure` in place of the whole list, after the runner has retried.
    """

    queries: tuple[str, ...]
    languages: tuple[str, ...]
    passages: int = 3


class FoundPassages(list[list[list[FoundPassage]]]):
    """The answer to a `Retrieve`: for each of its `queries`, for each language, the hits, best first."""

    def __init__(self, found: Iterable[list[list[FoundPassage]]], queries: tuple[str, ...]):
        super().__init__(found)
        self.queries = queries


@dataclasses.dataclass(frozen=True)
class RetrievalFailure:
    """The answer to a `Retrieve` that failed after every retry; it sets `EpisodeRecord.failure` of the episode."""

    reason: str


TRANSLATION = "translation"  # name of the tool that `Translate` uses


@dataclasses.dataclass(frozen=True)
class Translate:
    """Translates a text with the runner's translator. Answer: `str`, or `TranslationFailure`."""

    text: str
    source: str | None  # code of its language; None: the translator detects it
    target: str  # code of the language to translate into


@dataclasses.dataclass(frozen=True)
class TranslationFailure:
    """The answer to a `Translate` that the translator cannot do."""

    reason: str
    unavailable: bool = False  # the translator itself failed, after every retry; in an episode a `GenerationFailure`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete:
    """Completes a prompt in a fresh context outside the dialogue. Answer: `Completion`.

    If another model fails after every retry, `GenerationFailed` is raised in the program instead.

    The completion is counted and kept in the record, and never trained on. Several in one tuple run in parallel, each
    with its own random numbers; equal ones are several samples of one prefilled prompt. A model with a chat template
    gets the prompt as the user's turn. The policy's prompt may be a `FittedText`; if it does not fit the policy's
    context, `ContextFull` is raised in the program instead.
    """

    prompt: str | FittedText
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None  # None here: the run's default
    temperature: float | None = None
    top_p: float | None = None
    model: str | None = None  # one of the runner's other models; None: the policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """The answer to a `Complete`; a model that does not report each token leaves the last two empty."""

    text: str  # up to and including the stop string that ended it
    finish_reason: Literal["stop", "eos", "length"]
    tokens: int  # sampled ones
    pieces: tuple[str, ...] = ()  # the text of each token; joined they begin with `text`
    log_probabilities: tuple[float, ...] = ()  # of each token, in the untruncated distribution at temperature 1


@dataclasses.dataclass(frozen=True)
class GenerationFailure:
    """The answer of another model whose completion or translation failed after every retry."""

    reason: str


class GenerationFailed(Exception):
    """Raised in a program when another model that it asks fails after every retry.

    A program need not catch it: its episode then ends with `EpisodeRecord.failure` and without a reward.
    """


class ContextFull(Exception):
    """Raised in a program whose context has no room for its request.

    A program may catch it to return an `Outcome`; otherwise its episode ends without an answer.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of an episode."""

    answer: str | None  # in the policy's text; None if it gave none
    invalid_actions: int = 0  # generations without a valid action
    counts: dict[str, int] = dataclasses.field(default_factory=dict)  # of the program, logged as `episode/<name>`
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)  # evidence, plan, ...; JSON-serialisable


Found: TypeAlias = Sequence[Sequence[Sequence[FoundPassage]]]  # queries, languages, passages
Request: TypeAlias = Observe | Generate | Retrieve | Translate | Complete
Program: TypeAlias = Generator[Request | tuple[Request, ...], Any, Outcome]
