"""Baselines without decisions of the policy: direct inference, RAG and Iter-Retgen."""

import re
from collections.abc import Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.requests import Complete, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import TAGS
from lcrag.errors import lookup
from lcrag.methods.baselines.prompts import DIRECT, RAG, answer_from

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})>")


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
            query = f"{without_tags(completion.text)} {question.text}".strip()
    return (yield from answer_from(step, prompt))


def without_tags(text: str) -> str:
    """Returns the text on one line, without tags."""
    return " ".join(_TAG.sub(" ", text).split())
