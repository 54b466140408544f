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

    Attributes:
      text: The text.
      system: The method's instructions, in the first one only: the system message for a model with a chat template,
        otherwise placed before the text.
      tools: Names of the tools that the text offers the policy; a runner that lacks one of them rejects the program
        before anything is sampled.
    """

    text: str | FittedText
    system: str | None = None
    tools: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
    """Lets the policy continue this episode's context.

    Answer: `str`, the sampled text up to and including the stop string that ended it, without the rest of that token.

    Attributes:
      stop: Strings that end the generation.
      max_tokens, temperature, top_p: As in `SamplingParameters`; None: the run's default.
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
    """Translates a text with the runner's translator. Answer: `str`, or `TranslationFailure`.

    Attributes:
      text: The text.
      source: Code of its language; None: the translator detects it.
      target: Code of the language to translate into.
    """

    text: str
    source: str | None
    target: str


@dataclasses.dataclass(frozen=True)
class TranslationFailure:
    """The answer to a `Translate` that the translator cannot do.

    Attributes:
      reason: Why.
      unavailable: Whether the translator itself failed, after every retry; in an episode this is a `GenerationFailure`.
    """

    reason: str
    unavailable: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete:
    """Completes a prompt in a fresh context outside the dialogue. Answer: `Completion`.

    If another model fails after every retry, `GenerationFailed` is raised in the program instead.

    The completion is counted and kept in the record, and never trained on. Several in one tuple run in parallel, each
    with its own random numbers; equal ones are several samples of one prefilled prompt.

    Attributes:
      prompt: The prompt; a model with a chat template gets it as the user's turn. The policy's may be a `FittedText`;
        if it does not fit the policy's context, `ContextFull` is raised in the program instead.
      stop: Strings that end the completion.
      max_tokens, temperature, top_p: As in `SamplingParameters`; None: the run's default.
      model: Name of one of the runner's other models; None: the policy.
    """

    prompt: str | FittedText
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    model: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """The answer to a `Complete`.

    Attributes:
      text: Up to and including the stop string that ended it.
      finish_reason: "stop", "eos" or "length".
      tokens: Number of sampled tokens.
      pieces: The text of each token; joined they begin with `text`. Empty if the model does not report them.
      log_probabilities: Log-probability of each token in the untruncated distribution at temperature 1. Empty if the
        model does not report them.
    """

    text: str
    finish_reason: Literal["stop", "eos", "length"]
    tokens: int
    pieces: tuple[str, ...] = ()
    log_probabilities: tuple[float, ...] = ()


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
    """The result of an episode.

    Attributes:
      answer: The answer in the policy's text, None if it gave none.
      invalid_actions: Number of generations without a valid action.
      counts: The program's counters, logged as `episode/<name>` in addition to the engine's.
      extra: Further results of a method (evidence, plan, ...); JSON-serialisable.
    """

    answer: str | None
    invalid_actions: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


Found: TypeAlias = Sequence[Sequence[Sequence[FoundPassage]]]  # queries, languages, passages
Request: TypeAlias = Observe | Generate | Retrieve | Translate | Complete
Program: TypeAlias = Generator[Request | tuple[Request, ...], Any, Outcome]
