"""Baselines that search with the question or a whole generation: direct inference, RAG, Iter-Retgen, and SuRe."""

import dataclasses
import itertools
import re
from collections.abc import Generator, Sequence
from typing import Any

import gin

from lcrag.data.questions import Question, language_of
from lcrag.episodes.programs import (
    Complete,
    FittedText,
    Found,
    Generate,
    Observe,
    Outcome,
    Program,
    RetrievalFailure,
    Retrieve,
    answer_language,
    hits_of,
)
from lcrag.episodes.searches import Framed, Information, Route, information, native_only, statements
from lcrag.episodes.tags import TAGS, answer_in, closing, neutralise, opening
from lcrag.errors import lookup
from lcrag.rewards.text import folded

# --- Steps, which all baselines share ---
# Every step has two wordings: "full" for models that follow instructions, "atlas" for the built-in tiny one. The
# prompts paraphrase those of the papers, with the tags and the answer format of LcRL's prompt, so methods do not differ
# in how their answers are parsed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One request to a model.

    Placeholders of the prompt are {question}, {wanted} (English name of the answer's language), {example} (an answer in
    it), and the step's own values.
    """

    before: str  # the prompt up to the passages, or the whole prompt without passages
    after: str = ""  # the prompt after the passages
    tag: str = "answer"  # around the requested text
    stop: tuple[str, ...] = ("</answer>",)  # strings that end the model's text
    opened: str = ""  # beginning of the model's text that the prompt already contains
    then_opened: str = ""  # shown after a last text without an answer, before the policy writes once more; "": no more
    style: str = "search_r1"  # name of the passage style
    shown: str = "{text}\n"  # how the text is shown to a later step: {text}, and the step's own values

    def text(self, question: Question, **values: Any) -> str:
        """Returns the prompt without passages."""
        return self._filled(self.before + self.after, question, values) + self.opened

    def around(self, block: Information, question: Question, **values: Any) -> Framed:
        """Returns the prompt with passages."""
        before, after = (self._filled(part, question, values) for part in (self.before, self.after))
        return Framed(before, block, after + self.opened)

    def _filled(self, part: str, question: Question, values: dict[str, Any]) -> str:
        wanted = language_of(answer_language(question))
        values = {"question": question.text, **values}
        safe = {name: neutralise(str(value)) for name, value in values.items()}
        return part.format(wanted=wanted.name, example=wanted.example, **safe)

    def show(self, written: str, **values: Any) -> str:
        """Returns the text inside the tag, or all text if the model forgot the tag, as a later step sees it."""
        content = inside(self.tag, self.opened + written)
        return self.shown.format(text=" ".join(content.split()), **values)


def titles_of(found: Found | RetrievalFailure) -> str:
    """Returns the titles of a search's passages, without duplicates."""
    return "; ".join(dict.fromkeys(hit.title for hit in hits_of(found)))


def inside(tag: str, text: str) -> str:
    """Returns the text from the last opening of a tag to its closing; the whole text if it is never opened."""
    _, opened, rest = text.rpartition(opening(tag))
    return rest.partition(closing(tag))[0].strip() if opened else text.strip()


def answer_from(step: Step, prompt: str | FittedText) -> Generator[Observe | Generate, Any, Outcome]:
    """Runs a baseline's last step: its prompt opens the episode's own context, and the policy answers.

    If its text has no answer and the step has `then_opened`, that is shown, and the policy writes once more.
    """
    yield Observe(prompt)
    text = yield Generate(stop=step.stop)
    answer = answer_in(step.opened + text)
    if answer is None and step.then_opened:
        yield Observe(step.then_opened)
        text = yield Generate(stop=("</answer>",))
        answer = answer_in(step.then_opened + text)
    return Outcome(answer=answer, invalid_actions=int(answer is None))


REASON_AND_ANSWER = (
    "Reason inside <think> and </think> first, then provide the answer inside <answer> and </answer> without detailed "
    "illustrations. Note: The answer must be in {wanted}. For example: <answer> {example} </answer>. "
)
QUESTION = "Question: {question}\n"
# The tiny policy notes a sentence of the passages on a line and answers with its value. Such lines are shown to later
# steps as passages.
SHORT = Step(before="{question}\n", stop=("\n", "</answer>"), then_opened="<answer>", style="atlas", shown=" {text}\n")
SEARCHES_OR_ANSWERS = Step(before="{question}\n", stop=("</search>", "</answer>"), style="atlas")

RAG = {
    "full": Step(
        before="Answer the given question with the help of the passages between <information> and </information>. They "
        "may be incomplete, irrelevant or in other languages. " + REASON_AND_ANSWER,
        after=QUESTION,
    ),
    "atlas": SHORT,
}


# --- Direct inference, RAG, Iter-Retgen ---

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})>")

DIRECT = {
    "full": Step(before="Answer the given question from your own knowledge. " + REASON_AND_ANSWER + QUESTION),
    "atlas": SHORT,
}


@gin.configurable(denylist=["question", "collections"])
def direct_inference(question: Question, collections: Sequence[str], *, wording: str = "full") -> Program:
    """Answers from the policy's parameters alone (LcRL, appendix A.3); `collections` are not used."""
    step = lookup(DIRECT, wording, "wording")
    return (yield from answer_from(step, step.text(question)))


@gin.configurable(denylist=["question", "collections"])
def rag(
    question: Question,
    collections: Sequence[str],
    *,
    passages: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Searches with the question, then answers (Lewis et al., 2020). With a fine-tuned policy this is SFT."""
    step = lookup(RAG, wording, "wording")
    found = yield Retrieve((question.text,), route(1, question.language, collections), passages)
    prompt = step.around(information(found, step.style, observation_tokens), question)
    return (yield from answer_from(step, prompt))


@gin.configurable(denylist=["question", "collections"])
def iter_retgen(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 2,
    passages: int = 5,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Alternates retrieval and generation (Shao et al., 2023, section 3).

    The first query is the question; each later one is the whole previous generation, followed by the question. Every
    generation sees only the passages of its own search. All but the last are written in fresh contexts.

    Args:
      budget: Number of searches and generations, at least 1 (the paper: 2 get most of the gain).
    """
    step = lookup(RAG, wording, "wording")
    query = question.text
    for iteration in range(1, max(budget, 1) + 1):
        found = yield Retrieve((query,), route(iteration, question.language, collections), passages)
        prompt = step.around(information(found, step.style, observation_tokens), question)
        if iteration < budget:
            completion = yield Complete(prompt=prompt, stop=step.stop)
            generated = " ".join(_TAG.sub(" ", completion.text).split())
            query = f"{generated} {question.text}".strip()
    return (yield from answer_from(step, prompt))


# --- SuRe ---

_MARK = re.compile(r"\(\s*[a-z]\s*\)")
_NUMBER = re.compile(r"\b[12]\b")
_CANDIDATE = Step(before="{question}\n", opened="<answer>", style="atlas", shown=" {text}\n")

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
        tag="information",
        stop=("</information>",),
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
    valid = [inside("answer", check.opened + verdict.text) for verdict in verdicts[: len(chosen)]]
    scores = [
        float(text.casefold().startswith("true") or _same(text, candidate))
        for text, candidate in zip(valid, chosen, strict=True)
    ]
    for (one, other), verdict in zip(pairs, verdicts[len(chosen) :], strict=True):
        scores[one] += win(inside("answer", compare.opened + verdict.text), chosen[one], chosen[other])
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
    return folded(text).strip() == folded(candidate).strip()
