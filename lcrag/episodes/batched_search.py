"""Answers many searches with few calls, and tries again what fails."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lcrag.episodes.requests import Found, FoundPassage, RetrievalFailure, Retrieve
from lcrag.episodes.retrying import ONCE, Failed, Retries, attempted

Search: TypeAlias = Callable[[list[str], list[str], int], Sequence[Sequence[FoundPassage]]]


def answer_batch(search: Search, requests: Sequence[Retrieve], retries: Retries) -> list[Found | RetrievalFailure]:
    """Answers many requests with one search call for each number of passages asked.

    When every attempt has failed, each request is tried alone, so that one that cannot be served fails alone.
    """
    by_count: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_count.setdefault(request.passages, []).append(index)
    answers: dict[int, Found | RetrievalFailure] = {}
    for indices in by_count.values():
        group = [requests[index] for index in indices]
        found = _with_retries(search, group, retries)
        if not isinstance(found, RetrievalFailure):
            answers.update(zip(indices, found, strict=True))
        elif len(group) == 1:
            answers[indices[0]] = found
        else:
            answers |= {index: _alone(search, requests[index]) for index in indices}
    return [answers[index] for index in range(len(requests))]


def _with_retries(search: Search, group: Sequence[Retrieve], retries: Retries) -> list[Found] | RetrievalFailure:
    found = attempted(functools.partial(_search_together, search, group), retries, f"search of {len(group)} requests")
    return RetrievalFailure(found.reason) if isinstance(found, Failed) else found


def _alone(search: Search, request: Retrieve) -> Found | RetrievalFailure:
    found = _with_retries(search, [request], ONCE)
    return found if isinstance(found, RetrievalFailure) else found[0]


def _search_together(search: Search, group: Sequence[Retrieve]) -> list[Found]:
    """One call for all (query, language) pairs, each distinct pair searched once."""
    pairs = dict.fromkeys((query, language) for each in group for query in each.queries for language in each.languages)
    results = search([query for query, _ in pairs], [language for _, language in pairs], group[0].passages)
    if len(results) != len(pairs):
        raise RuntimeError(f"the search answered {len(results)} of {len(pairs)} queries")
    hits = dict(zip(pairs, results, strict=True))
    return [[[list(hits[query, language]) for language in each.languages] for query in each.queries] for each in group]
