"""Plays an episode program with scripted texts; finished episodes as rewards get them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lcrag.episodes import Complete, Completion, Generate, Outcome, Program, Request, Retrieve, Translate
from lcrag.rewards import Episodes


def drive(
    program: Program, texts: Iterable[str | Completion], found: Any = None, translated: Any = None
) -> tuple[Outcome, list[Request]]:
    """Plays a program: the policy and its completer write `texts`, every search is answered with `found` or what it
    returns.

    Without `found` searches find nothing; every translation is `translated`. Returns the outcome and the requests, and
    fails if the program ends early.
    """
    requests, texts, sent = [], iter(texts), None

    def answer(request):
        if isinstance(request, tuple):
            return tuple(map(answer, request))
        requests.append(request)
        match request:
            case Generate():
                return next(texts)
            case Complete():
                said = next(texts)
                return said if isinstance(said, Completion) else Completion(text=said, finish_reason="stop", tokens=1)
            case Retrieve(queries, languages) if found is None:
                return [[[] for _ in languages] for _ in queries]
            case Retrieve():
                return found(request) if callable(found) else found
            case Translate():
                return translated

    while True:
        try:
            request = program.send(sent)
        except StopIteration as stop:
            assert next(texts, None) is None, "the program ended early"
            return stop.value, requests
        sent = answer(request)


def searched(requests: Iterable[Request]) -> list[tuple[str, ...]]:
    """The languages of each search."""
    return [request.languages for request in requests if isinstance(request, Retrieve)]


def stops(requests: Iterable[Request]) -> list[tuple[str, ...]]:
    """The stop strings of each generation."""
    return [request.stop for request in requests if isinstance(request, Generate)]


def finished(answers: Sequence[str | None], golds: Sequence[Sequence[str]], **columns: Any) -> Episodes:
    """Returns episodes of one group in English, on the questions "Q0?", "Q1?" ...; `columns` replace what is usual."""
    count = len(answers)
    usual = {"group_ids": np.zeros(count, int), "languages": ["en"] * count}
    usual["questions"] = [f"Q{number}?" for number in range(count)]
    return Episodes(answers=answers, golds=golds, **(usual | columns))
