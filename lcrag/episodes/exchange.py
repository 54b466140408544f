"""What a program asks for at once, and the answers that have come."""

import dataclasses
import functools
from typing import Any

import numpy as np

from lcrag.episodes.context_text import PlacedText
from lcrag.episodes.requests import Complete, Request


class Exchange:
    """A request, or several in parallel, and the answers that have come."""

    def __init__(self, asked: Request | tuple[Request, ...]):
        self._single = not isinstance(asked, tuple)
        self.parts: tuple[Request, ...] = asked if isinstance(asked, tuple) else (asked,)
        self.answers: dict[int, Any] = {}

    def answer(self, part: int, value: Any) -> None:
        """Part number `part` is answered."""
        self.answers[part] = value

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self.parts)

    @property
    def value(self) -> Any:
        """What the program is sent: one answer, or a tuple of them in the order asked."""
        return self.answers[0] if self._single else tuple(self.answers[part] for part in range(len(self.parts)))


@dataclasses.dataclass(frozen=True)
class Stream:
    """Names the random numbers of one context.

    Attributes:
      episode: The episode's number.
      completion: The place of a completion among those of its episode, from 1; 0 is the episode's own context.
    """

    episode: int
    completion: int = 0

    def seed(self, seed: int) -> int:
        """The seed of a run as this stream uses it: an episode takes it as it is, a completion one derived from it."""
        return derived_seed(seed, self.completion) if self.completion else seed


@functools.cache
def derived_seed(seed: int, completion: int) -> int:
    """A seed of 32 bits for the n-th completion of every episode, unrelated to the run's own."""
    return int(np.random.SeedSequence((seed, completion)).generate_state(1)[0])


@dataclasses.dataclass(frozen=True, eq=False)
class Aside:
    """A completion that a program asked for.

    Attributes:
      exchange: Where its answer goes.
      part: As which part.
      request: What was asked.
      stream: Names its random numbers.
      opening: The prompt as it stands in the policy's context; without tokens where another model is asked.
    """

    exchange: Exchange
    part: int
    request: Complete
    stream: Stream
    opening: PlacedText
