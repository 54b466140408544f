"""What an episode program may ask for, and what it returns.

A program is a generator: it yields requests and is sent their answers. It knows nothing
of batching, slots, devices or masks.
"""

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class TextTokenizer(Protocol):
    """What fitting a text into a number of tokens needs of a tokenizer."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@runtime_checkable
class FoundPassage(Protocol):
    """What an episode sees of a search's hit."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


@runtime_checkable
class FittedText(Protocol):
    """Environment text that adapts to the room there is for it."""

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """The text in at most `room_tokens` tokens; None if it cannot be made so small."""


@dataclasses.dataclass(frozen=True)
class Observe:
    """Append environment text to this episode's context. Answer: None.

    The first one is the episode's opening prompt: a model with a chat template gets it as the user's turn.

    If it does not fit into what is left of the context, `ContextFull` is raised in the program instead.

    Attributes:
      text: What is appended.
      system: Of the first one, the method's instructions: a model with a chat template gets them as the system message,
        any other in front of the text.
      tools: Names of the tools that the text offers the policy; a runner without one of them refuses the program
        before anything is sampled.
    """

    text: str | FittedText
    system: str | None = None
    tools: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
    """Let the policy continue this episode's context. Answer: `str`, the sampled text up to and
    including the stop string that ended it (what follows it inside the same token is not part of the text).

    Attributes:
      stop: Strings that end the generation.
      max_tokens: At most this many tokens; None: the run's default.
      temperature: Sampling temperature, 0 is greedy; None: the run's default.
      top_p: Nucleus mass; None: the run's default.
    """

    stop: tuple[str, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None


@dataclasses.dataclass(frozen=True)
class Retrieve:
    """Search every query in every named language's collection.

    Answer: for each query, for each language in the order asked, a list of `FoundPassage`, best first.
    A failed search answers `RetrievalFailure` in place of the whole list; the runner has
    already retried and counted it.
    """

    queries: tuple[str, ...]
    languages: tuple[str, ...]
    passages: int = 3


@dataclasses.dataclass(frozen=True)
class RetrievalFailure:
    """The answer to a `Retrieve` that failed after every retry."""

    reason: str


TRANSLATION = "translation"  # the tool behind `Translate`


@dataclasses.dataclass(frozen=True)
class Translate:
    """Translate a text with the runner's translator. Answer: `str`, or `TranslationFailure` if there is none.

    Attributes:
      text: What to translate.
      source: Code of its language; None: the translator finds out.
      target: Code of the language wanted.
    """

    text: str
    source: str | None
    target: str


@dataclasses.dataclass(frozen=True)
class TranslationFailure:
    """The answer to a `Translate` that the translator does not do, or that failed after every retry."""

    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete:
    """Complete a prompt in a fresh context beside this episode's own. Answer: `Completion`.

    What is written there is not the episode's: it is counted and kept in the record, and never trained on. Several in
    one tuple run in parallel, each with random numbers of its own; equal ones are several samples, and their prompt is
    prefilled once.

    Attributes:
      prompt: The prompt; the policy's may be a `FittedText`. A model with a chat template gets it as the user's turn.
        If it does not fit the policy's context, `ContextFull` is raised in the program instead.
      stop: Strings that end the completion.
      max_tokens: At most this many tokens; None: the run's default.
      temperature: Sampling temperature, 0 is greedy; None: the run's default.
      top_p: Nucleus mass; None: the run's default.
      model: Who completes it: None is the policy, a name is one of the runner's other models.
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
      tokens: How many were sampled.
      pieces: The text of each token; joined they begin with `text`. Empty if the model does not tell.
      log_probabilities: Of each token, in the untruncated distribution at the sampling temperature. Empty likewise.
    """

    text: str
    finish_reason: Literal["stop", "eos", "length"]
    tokens: int
    pieces: tuple[str, ...] = ()
    log_probabilities: tuple[float, ...] = ()


class ContextFull(Exception):
    """Raised inside a program whose context has no room left for what it asked.

    A program may catch it to return its own `Outcome`; otherwise its episode ends without an answer.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an episode came to.

    Attributes:
      answer: The answer in the policy's own text, None if it gave none.
      invalid_actions: How often the policy did nothing valid.
      counts: What the program counted, logged as `episode/<name>` beside what the engine counts.
      extra: What a method needs beyond this (evidence, plan, ...); JSON-serialisable.
    """

    answer: str | None
    invalid_actions: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


Found: TypeAlias = Sequence[Sequence[Sequence[FoundPassage]]]  # queries, languages, passages
Request: TypeAlias = Observe | Generate | Retrieve | Translate | Complete
Program: TypeAlias = Generator[Request | tuple[Request, ...], Any, Outcome]
