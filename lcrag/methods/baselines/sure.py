"""SuRe: candidates for the answer, a summary of the passages for each; the best supported candidate wins."""

import itertools
import re
from collections.abc import Generator, Sequence
from typing import Any

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information, statements
from lcrag.episodes.requests import Complete, Generate, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import ANSWER, answer_in
from lcrag.errors import lookup
from lcrag.methods.baselines.prompts import (
    SURE_CANDIDATES,
    SURE_RANKING,
    SURE_SUMMARY,
    SURE_VALIDITY,
    Step,
    inside,
    titles_of,
)

_MARK = re.compile(r"\(\s*[a-z]\s*\)")
_NUMBER = re.compile(r"\b[12]\b")


@gin.configurable(denylist=["question", "collections"])
def sure(
    question: Question,
    collections: Sequence[str],
    *,
    candidates: int = 2,
    drafts: int = 1,
    passages: int = 10,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Summarised retrieval (Kim et al., 2024, section 3).

    The policy names candidates in the episode's own context. For each, a fresh context summarises the passages in its
    favour (equation 4). Then the validity of every summary is judged and every ordered pair of summaries compared, all
    in parallel. The answer is the candidate with the largest validity + wins (equations 5 to 7); of a tie, the one
    named first. A single candidate is not judged.

    Args:
      question, collections, passages, route, wording, observation_tokens: See `lcrag.methods`.
      candidates: K, maximum number of candidates (the paper: 2).
      drafts: How often candidates are asked for, after the first time in fresh contexts, for a policy that names one at
        a time (the paper: 1).
    """
    propose, summarise = (lookup(step, wording, "wording") for step in (SURE_CANDIDATES, SURE_SUMMARY))
    found = yield Retrieve((question.text,), route(1, question.language, collections), passages)
    prompt = propose.around(information(found, propose.style, observation_tokens), question, candidates=candidates)
    yield Observe(prompt)
    own = yield Generate(stop=propose.stop)
    others = yield (Complete(prompt=prompt, stop=propose.stop),) * (drafts - 1)
    named = [each for text in (own, *(other.text for other in others)) for each in candidates_in(propose.opened + text)]
    chosen = list(dict.fromkeys(named))[:candidates]
    if len(chosen) < 2:
        answer = next(iter(chosen), None)
        return Outcome(answer=answer, invalid_actions=int(answer is None), extra={"candidates": chosen})
    block = information(found, summarise.style, observation_tokens)
    written = yield tuple(
        Complete(prompt=summarise.around(block, question, candidate=each), stop=summarise.stop) for each in chosen
    )
    summaries = [
        summarise.show(completion.text, candidate=candidate, titles=titles_of(found))
        for candidate, completion in zip(chosen, written, strict=True)
    ]
    scores = yield from judged(question, chosen, summaries, wording, observation_tokens)
    best = max(range(len(chosen)), key=lambda number: scores[number])
    return Outcome(answer=chosen[best], extra={"candidates": chosen, "summaries": summaries, "scores": scores})


def judged(
    question: Question, candidates: Sequence[str], summaries: Sequence[str], wording: str, observation_tokens: int
) -> Generator[tuple[Complete, ...], Any, list[float]]:
    """Returns validity plus wins of each candidate's summary, all judged in parallel (equations 5 to 7).

    A win over another summary is 1, a defeat 0, and 1/2 if the judge names neither.
    """
    check, compare = (lookup(step, wording, "wording") for step in (SURE_VALIDITY, SURE_RANKING))
    pairs = list(itertools.permutations(range(len(candidates)), 2))
    validity = [
        _judgement(check, question, [summary], observation_tokens, candidate=candidate)
        for candidate, summary in zip(candidates, summaries, strict=True)
    ]
    ranking = [_judgement(compare, question, [summaries[a], summaries[b]], observation_tokens) for a, b in pairs]
    verdicts = yield (*validity, *ranking)
    valid = [inside(ANSWER, check.opened + each.text) for each in verdicts[: len(candidates)]]
    scores = [float(is_valid(text, candidate)) for text, candidate in zip(valid, candidates, strict=True)]
    for (one, other), verdict in zip(pairs, verdicts[len(candidates) :], strict=True):
        text = inside(ANSWER, compare.opened + verdict.text)
        scores[one] += win(text, candidates[one], candidates[other])
    return scores


def _judgement(
    step: Step, question: Question, summaries: Sequence[str], observation_tokens: int, **values: str
) -> Complete:
    shown = [step.show(summary, number=number) for number, summary in enumerate(summaries, start=1)]
    prompt = step.around(statements(shown, step.style, observation_tokens), question, **values)
    return Complete(prompt=prompt, stop=step.stop)


def candidates_in(text: str) -> list[str]:
    """Returns the candidates in a policy's answer: (a) one (b) another; the whole answer if nothing is marked."""
    parts = (part.strip(" \n\t,;") for part in _MARK.split(answer_in(text) or ""))
    return [part for part in parts if part]


def is_valid(text: str, candidate: str) -> bool:
    """Returns whether a judge called a summary true, or answered with its candidate."""
    return text.casefold().startswith("true") or _same(text, candidate)


def win(text: str, one: str, other: str) -> float:
    """Returns 1 if a judge named the first summary, 0 if the second, 1/2 if neither; by number or by candidate."""
    if _same(text, one) or _same(text, other):
        return float(_same(text, one))
    number = _NUMBER.search(text)
    return {"1": 1.0, "2": 0.0}[number[0]] if number else 0.5


def _same(text: str, candidate: str) -> bool:
    return text.strip().casefold() == candidate.casefold()
