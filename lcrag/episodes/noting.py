"""Any episode program with a note of what its searches found."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from lcrag.episodes.requests import ContextFull, Found, FoundPassage, Program, Request, RetrievalFailure, Retrieve


@dataclasses.dataclass(frozen=True)
class NotedSearch:
    """A search that an episode made, and what came of it."""

    request: Retrieve
    answer: Found | RetrievalFailure

    @property
    def passages(self) -> list[FoundPassage]:
        """What it found: by query, then by language, best first; empty if it failed."""
        if isinstance(self.answer, RetrievalFailure):
            return []
        return [passage for languages in self.answer for passages in languages for passage in passages]


def noting_searches(program: Program, noted: list[NotedSearch]) -> Program:
    """The same program: it asks, is sent and returns the same.

    Args:
      program: Any fresh episode program.
      noted: Every answered search is added to it, in the order asked.
    """
    resume: Callable[[], Request | tuple[Request, ...]] = functools.partial(next, program)
    while True:
        try:
            asked = resume()
        except StopIteration as end:
            return end.value
        try:
            answer = yield asked
        except ContextFull as full:
            resume = functools.partial(program.throw, full)
        else:
            noted.extend(_searches(asked, answer))
            resume = functools.partial(program.send, answer)


def _searches(asked: Request | tuple[Request, ...], answer: Any) -> list[NotedSearch]:
    parts = zip(asked, answer, strict=True) if isinstance(asked, tuple) else [(asked, answer)]
    return [NotedSearch(request, found) for request, found in parts if isinstance(request, Retrieve)]
