"""Iter-Retgen: what was generated is the next search, and what was found the next generation's passages."""

import re
from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.requests import Complete, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import TAGS
from lcrag.methods.baselines.prompts import RAG, worded
from lcrag.methods.baselines.steps import answer_from

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})>")


def iter_retgen(
    question: Question,
    collections: Sequence[str],
    *,
    iterations: int = 2,
    passages: int = 5,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Alternates retrieval and generation (Shao et al., 2023, section 3).

    The first search is for the question, each later one for the whole generation before it with the question behind.
    Every generation sees the passages of its own search only; all but the last are written in fresh contexts.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      iterations: Searches, and generations (the paper: 2 get most of the gain).
      passages: Passages of each searched language (the paper: 5).
      route: Which collections search number b goes to.
      wording: "full" or "atlas".
      observation_tokens: At most this many tokens for the passages of a prompt.
    """
    step = worded(RAG, wording)
    query = question.text
    for iteration in range(1, iterations + 1):
        found = yield Retrieve((query,), route(iteration, question.language, collections), passages)
        prompt = step.around(information(found, step.style, observation_tokens), question)
        if iteration < iterations:
            completion = yield Complete(prompt=prompt, stop=step.stop)
            query = f"{without_tags(completion.text)} {question.text}".strip()
    return (yield from answer_from(step, prompt))


def without_tags(text: str) -> str:
    """What a model wrote, without the tags around it, on one line."""
    return " ".join(_TAG.sub(" ", text).split())
