"""Intercepts the requests of an episode program, and logs its searches with their answers."""

import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from lcrag.episodes.requests import (
    ContextFull,
    Found,
    FoundPassage,
    GenerationFailed,
    Program,
    Request,
    RetrievalFailure,
    Retrieve,
)

Requests: TypeAlias = Request | tuple[Request, ...]
Asking: TypeAlias = Generator[Requests, Any, Any]  # yields requests, returns an answer


@dataclasses.dataclass(frozen=True)
class LoggedSearch:
    """A search of an episode, and its answer."""

    request: Retrieve
    answer: Found | RetrievalFailure

    @property
    def passages(self) -> list[FoundPassage]:
        """The passages found, by query, then by language, best first; empty if the search failed."""
        if isinstance(self.answer, RetrievalFailure):
            return []
        return [passage for languages in self.answer for passages in languages for passage in passages]


def log_searches(program: Program, log: list[LoggedSearch]) -> Program:
    """Wraps a fresh episode program and appends every answered search to `log`, in the order requested."""

    def logged(asked: Requests) -> Asking:
        answer = yield asked
        log.extend(_searches(asked, answer))
        return answer

    return intercepted(program, logged)


def intercepted(program: Program, around: Callable[[Requests], Asking]) -> Program:
    """Wraps a fresh episode program: for its requests, `around(requests)` yields requests and returns the answer."""
    resume: Callable[[], Requests] = functools.partial(next, program)
    while True:
        try:
            asked = resume()
        except StopIteration as end:
            return end.value
        try:
            answer = yield from around(asked)
        except (ContextFull, GenerationFailed) as raised:
            resume = functools.partial(program.throw, raised)
        else:
            resume = functools.partial(program.send, answer)


def _searches(asked: Requests, answer: Any) -> list[LoggedSearch]:
    parts = zip(asked, answer, strict=True) if isinstance(asked, tuple) else [(asked, answer)]
    return [LoggedSearch(request, found) for request, found in parts if isinstance(request, Retrieve)]
