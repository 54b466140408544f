"""What an episode program may ask for, and what it returns.

A program is a generator: it yields requests and is sent their answers. It knows nothing
of batching, slots, devices or masks.
"""

import dataclasses
from collections.abc import Generator
from typing import Any, TypeAlias


@dataclasses.dataclass(frozen=True)
class Observe:
    """Append environment text to this episode's context. Answer: None."""

    text: str


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

    Answer: for each query, for each language in the order asked, a list of `Passage`.
    A failed search answers `RetrievalFailure` in place of the whole list; the runner has
    already retried and counted it.
    """

    queries: tuple[str, ...]
    languages: tuple[str, ...]
    passages: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an episode came to.

    Attributes:
      answer: The answer in the policy's own text, None if it gave none.
      invalid_actions: How often the policy did nothing valid.
      extra: What a method needs beyond this (evidence, plan, ...); JSON-serialisable.
    """

    answer: str | None
    invalid_actions: int = 0
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


Request: TypeAlias = Observe | Generate | Retrieve
Program: TypeAlias = Generator[Request | tuple[Request, ...], Any, Outcome]
