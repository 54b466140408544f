"""SuRe: candidates for the answer, a summary of the passages for each; the best supported candidate wins."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import Complete, Generate, Observe, Outcome, Program, Retrieve
from lcrag.episodes.searches import Route, information, native_only, statements
from lcrag.episodes.tags import ANSWER, INFORMATION, answer_in, closing, opening
from lcrag.errors import lookup
from lcrag.methods.baselines.steps import QUESTION, Step, inside, titles_of

_MARK = re.compile(r"\(\s*[a-z]\s*\)")
_NUMBER = re.compile(r"\b[12]\b")
_CANDIDATE = Step(before="{question}\n", opened=opening(ANSWER), style="atlas", shown=" {text}\n")

SURE_CANDIDATES = {
    "full": Step(
        before="Read the passages between <information> and </information>, which may be incomplete or irrelevant.",
        after=QUESTION
        + "Give {candidates} different candidates for the answer, the likeliest first, each a few words in {wanted}. "
        "Reason inside <think> and </think> first, then write them inside <answer> and </answer> as (a) {example} (b) "
        "another, and so on.\n",
    ),
    "atlas": _CANDIDATE,
}

SURE_SUMMARY = {
    "full": Step(
        before="Read the passages between <information> and </information>.",
        after=QUESTION
        + "Somebody answers: {candidate}\nWrite a short passage that supports this answer to the question, made only "
        "of what the passages say, inside <information> and </information>. Do not mention the passages themselves.\n",
        tag=INFORMATION,
        stop=(closing(INFORMATION),),
    ),
    "atlas": dataclasses.replace(_CANDIDATE, shown=" {titles}: {candidate}\n"),
}

SURE_VALIDITY = {
    "full": Step(
        before="Read the passage between <information> and </information>.",
        after=QUESTION
        + "Answer: {candidate}\nDoes the passage really support this answer to the question? Write <answer> True "
        "</answer> or <answer> False </answer>.\n",
    ),
    "atlas": _CANDIDATE,
}

SURE_RANKING = {
    "full": Step(
        before="Read the two passages between <information> and </information>.",
        after=QUESTION
        + "Which of the two answers the question in a more informative way? Write <answer> 1 </answer> for the first, "
        "<answer> 2 </answer> for the second.\n",
        shown="Passage {number}: {text}\n",
    ),
    "atlas": _CANDIDATE,
}


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
    propose, summarise, check, compare = (
        lookup(step, wording, "wording") for step in (SURE_CANDIDATES, SURE_SUMMARY, SURE_VALIDITY, SURE_RANKING)
    )
    found = yield Retrieve((question.text,), route(1, question.language, collections), passages)
    prompt = propose.around(information(found, propose.style, observation_tokens), question, candidates=candidates)
    yield Observe(prompt)
    first = yield Generate(stop=propose.stop)
    others = yield (Complete(prompt=prompt, stop=propose.stop),) * (drafts - 1)
    texts = [first, *(other.text for other in others)]
    named = [candidate for text in texts for candidate in candidates_in(propose.opened + text)]
    chosen = list(dict.fromkeys(named))[:candidates]
    if len(chosen) < 2:
        answer = next(iter(chosen), None)
        return Outcome(answer=answer, invalid_actions=int(answer is None), extra={"candidates": chosen})

    block = information(found, summarise.style, observation_tokens)
    written = yield tuple(
        Complete(prompt=summarise.around(block, question, candidate=candidate), stop=summarise.stop)
        for candidate in chosen
    )
    summaries = [
        summarise.show(completion.text, candidate=candidate, titles=titles_of(found))
        for candidate, completion in zip(chosen, written, strict=True)
    ]

    def judgement(step: Step, judged: Sequence[str], **values: str) -> Complete:
        shown = [step.show(summary, number=number) for number, summary in enumerate(judged, start=1)]
        prompt = step.around(statements(shown, step.style, observation_tokens), question, **values)
        return Complete(prompt=prompt, stop=step.stop)

    # The validity of every summary, and every ordered pair of summaries, judged in parallel (equations 5 and 6).
    pairs = list(itertools.permutations(range(len(chosen)), 2))
    verdicts = yield (
        *(judgement(check, [text], candidate=candidate) for candidate, text in zip(chosen, summaries, strict=True)),
        *(judgement(compare, [summaries[one], summaries[other]]) for one, other in pairs),
    )
    valid = [inside(ANSWER, check.opened + verdict.text) for verdict in verdicts[: len(chosen)]]
    scores = [
        float(text.casefold().startswith("true") or _same(text, candidate))
        for text, candidate in zip(valid, chosen, strict=True)
    ]
    for (one, other), verdict in zip(pairs, verdicts[len(chosen) :], strict=True):
        scores[one] += win(inside(ANSWER, compare.opened + verdict.text), chosen[one], chosen[other])
    best = max(range(len(chosen)), key=lambda number: scores[number])
    return Outcome(answer=chosen[best], extra={"candidates": chosen, "summaries": summaries, "scores": scores})


def candidates_in(text: str) -> list[str]:
    """Returns the candidates in a policy's answer: (a) one (b) another; the whole answer if nothing is marked."""
    parts = (part.strip(" \n\t,;") for part in _MARK.split(answer_in(text) or ""))
    return [part for part in parts if part]


def win(text: str, one: str, other: str) -> float:
    """Returns 1 if a judge named the first summary, 0 if the second, 1/2 if neither; by number or by candidate."""
    if _same(text, one) or _same(text, other):
        return float(_same(text, one))
    number = _NUMBER.search(text)
    return {"1": 1.0, "2": 0.0}[number[0]] if number else 0.5


def _same(text: str, candidate: str) -> bool:
    return text.strip().casefold() == candidate.casefold()
