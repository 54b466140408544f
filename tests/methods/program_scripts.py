"""Plays an episode program with scripted texts."""

from collections.abc import Iterable
from typing import Any

from lcrag.episodes import Generate, Outcome, Program, Request, Retrieve, Translate


def drive(
    program: Program, texts: Iterable[str], found: Any = None, translated: Any = None
) -> tuple[Outcome, list[Request]]:
    """Plays a program: the policy writes `texts`, every search is answered with `found` or what it returns.

    Without `found` searches find nothing; every translation is `translated`. Returns the outcome and the requests, and
    fails if the program ends early.
    """
    requests, texts, answer = [], iter(texts), None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as stop:
            assert next(texts, None) is None, "the program ended early"
            return stop.value, requests
        requests.append(request)
        match request:
            case Generate():
                answer = next(texts)
            case Retrieve(queries, languages) if found is None:
                answer = [[[] for _ in languages] for _ in queries]
            case Retrieve():
                answer = found(request) if callable(found) else found
            case _:
                answer = translated if isinstance(request, Translate) else None


def searched(requests: Iterable[Request]) -> list[tuple[str, ...]]:
    """The languages of each search."""
    return [request.languages for request in requests if isinstance(request, Retrieve)]


def stops(requests: Iterable[Request]) -> list[tuple[str, ...]]:
    """The stop strings of each generation."""
    return [request.stop for request in requests if isinstance(request, Generate)]
