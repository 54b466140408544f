"""Retrieval-augmented generation: one search with the question, then an answer."""

from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.requests import Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.methods.baselines.prompts import RAG, worded
from lcrag.methods.baselines.steps import answer_from


def rag(
    question: Question,
    collections: Sequence[str],
    *,
    passages: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Reads what the question itself finds (Lewis et al., 2020); fine-tuned on such readings, it is the baseline SFT.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      passages: Passages of each searched language.
      route: Which collections the search goes to.
      wording: "full" or "atlas".
      observation_tokens: At most this many tokens for the passages.
    """
    step = worded(RAG, wording)
    found = yield Retrieve((question.text,), route(1, question.language, collections), passages)
    prompt = step.around(information(found, step.style, observation_tokens), question)
    return (yield from answer_from(step, prompt))
