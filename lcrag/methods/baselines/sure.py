"""SuRe: several candidates for the answer, a summary of the passages for each, and the best supported one wins."""

import itertools
import re
from collections.abc import Generator, Sequence
from typing import Any

from lcrag.data.questions import Question
from lcrag.episodes.observation import information, statements
from lcrag.episodes.requests import Complete, Generate, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import ANSWER, answer_in
from lcrag.methods.baselines.prompts import worded
from lcrag.methods.baselines.steps import Step, inside, titles_of
from lcrag.methods.baselines.sure_prompts import SURE_CANDIDATES, SURE_RANKING, SURE_SUMMARY, SURE_VALIDITY

_MARK = re.compile(r"\(\s*[a-z]\s*\)")
_NUMBER = re.compile(r"\b[12]\b")


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
    favour (Equation 4); then, all at once, the validity of every summary is judged and every ordered pair of summaries
    compared. The answer is the candidate with the largest validity + wins (Equations 5 to 7), the likelier one of
    equals; a single candidate needs no judge.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      candidates: K, most candidates (the paper: 2).
      drafts: How often candidates are asked for, the later times in fresh contexts, for a policy that names one at a
        time (the paper: 1).
      passages: Passages of each searched language (the paper: 10).
      route: Which collections are searched.
      wording: "full" or "atlas".
      observation_tokens: At most this many tokens for the passages of a prompt.
    """
    propose, summarise = worded(SURE_CANDIDATES, wording), worded(SURE_SUMMARY, wording)
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
    """Validity plus wins of each candidate's summary, all asked in parallel (Equations 5 to 7).

    A win over another summary is 1, a defeat 0, and 1/2 where the judge names neither.
    """
    check, compare = worded(SURE_VALIDITY, wording), worded(SURE_RANKING, wording)
    pairs = list(itertools.permutations(range(len(candidates)), 2))
    validity = [
        _asked(check, question, [summary], observation_tokens, candidate=candidate)
        for candidate, summary in zip(candidates, summaries, strict=True)
    ]
    ranking = [_asked(compare, question, [summaries[a], summaries[b]], observation_tokens) for a, b in pairs]
    verdicts = yield (*validity, *ranking)
    said = [inside(ANSWER, check.opened + each.text) for each in verdicts[: len(candidates)]]
    scores = [float(is_valid(text, candidate)) for text, candidate in zip(said, candidates, strict=True)]
    for (one, other), verdict in zip(pairs, verdicts[len(candidates) :], strict=True):
        text = inside(ANSWER, compare.opened + verdict.text)
        scores[one] += win(text, candidates[one], candidates[other])
    return scores


def _asked(
    step: Step, question: Question, summaries: Sequence[str], observation_tokens: int, **values: str
) -> Complete:
    shown = [step.show(summary, number=number) for number, summary in enumerate(summaries, start=1)]
    prompt = step.around(statements(shown, step.style, observation_tokens), question, **values)
    return Complete(prompt=prompt, stop=step.stop)


def candidates_in(text: str) -> list[str]:
    """The candidates in the answer that a policy gave: (a) one (b) another; all of it where nothing is marked."""
    parts = (part.strip(" \n\t,;") for part in _MARK.split(answer_in(text) or ""))
    return [part for part in parts if part]


def is_valid(said: str, candidate: str) -> bool:
    """Whether a judge called a summary true, or gave the candidate as the answer that it finds in it."""
    return said.casefold().startswith("true") or _same(said, candidate)


def win(said: str, one: str, other: str) -> float:
    """1 if a judge named the first summary, 0 if the second, 1/2 if neither; by number, or by its candidate."""
    if _same(said, one) or _same(said, other):
        return float(_same(said, one))
    number = _NUMBER.search(said)
    return {"1": 1.0, "2": 0.0}[number[0]] if number else 0.5


def _same(said: str, candidate: str) -> bool:
    return said.strip().casefold() == candidate.casefold()
