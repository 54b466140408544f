"""Direct inference, RAG, Iter-Retgen, and Adaptive-RAG, which chooses among the first two and IRCoT."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import Complete, ConfiguredProgram, Program, Retrieve
from lcrag.episodes.searches import Route, information, native_only
from lcrag.episodes.tags import TAGS, Answer, SearchAction, parse_action
from lcrag.errors import lookup
from lcrag.methods.baselines.sentence_searches import ircot
from lcrag.methods.baselines.steps import (
    QUESTION,
    RAG,
    REASON_AND_ANSWER,
    SEARCHES_OR_ANSWERS,
    SHORT,
    Step,
    answer_from,
)

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})>")
_LABELS = {"A": "none", "B": "single", "C": "multiple"}
_LABEL = re.compile(r"\b[ABC]\b")

DIRECT = {
    "full": Step(before="Answer the given question from your own knowledge. " + REASON_AND_ANSWER + QUESTION),
    "atlas": SHORT,
}

COMPLEXITY = {
    "full": Step(
        before="Decide how a question should be answered. A: you know the answer without looking anything up. B: one "
        "search in an encyclopaedia finds it. C: several facts must be found one after the other, or compared. "
        + QUESTION
        + "Write only the letter A, B or C inside <answer> and </answer>.\n",
    ),
    "atlas": SEARCHES_OR_ANSWERS,
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
      question, collections, passages, route, wording, observation_tokens: See `lcrag.methods`.
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


PROGRAMS: Mapping[str, ConfiguredProgram] = {"none": direct_inference, "single": rag, "multiple": ircot}


@gin.configurable(denylist=["question", "collections"])
def adaptive_rag(
    question: Question,
    collections: Sequence[str],
    *,
    programs: Mapping[str, ConfiguredProgram] = PROGRAMS,
    classifier: str | None = None,
    wording: str = "full",
) -> Program:
    """Chooses among direct inference, RAG and IRCoT by the question's complexity (Jeong et al., 2024, section 3).

    The paper trains a small classifier; here a model is asked, greedily and in a fresh context: the policy, or another
    model that was trained for it. Its choice is `extra["complexity"]`. If it names no class, that is an invalid action
    and the question counts as complex.

    Args:
      question, collections, wording: See `lcrag.methods`.
      programs: The program of each class.
      classifier: Name of the model that classifies, one of `Runner.completers`; None: the policy.
    """
    step = lookup(COMPLEXITY, wording, "wording")
    completion = yield Complete(prompt=step.text(question), stop=step.stop, temperature=0.0, model=classifier)
    complexity = complexity_in(step.opened + completion.text)
    outcome = yield from programs[complexity or "multiple"](question, collections)
    return dataclasses.replace(
        outcome,
        invalid_actions=outcome.invalid_actions + (complexity is None),
        extra=outcome.extra | {"complexity": complexity},
    )


def complexity_in(text: str) -> str | None:
    """Returns the class that a text names, or None.

    A policy that does not classify reveals it: if it searches at once it needs one search, if it answers none.
    """
    match parse_action(text):
        case SearchAction():
            return "single"
        case Answer(answer):
            label = _LABEL.search(answer)
            return _LABELS[label[0]] if label else "none"
    label = _LABEL.fullmatch(text.strip().rstrip("."))
    return _LABELS[label[0]] if label else None
