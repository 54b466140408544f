"""Adaptive-RAG: how complex a question is decides whether it is searched for not at all, once, or step by step."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from lcrag.data.questions import Question
from lcrag.episodes.requests import Complete, Program
from lcrag.episodes.tags import Answer, SearchAction, parse_action
from lcrag.methods.baselines.direct import direct_inference
from lcrag.methods.baselines.ircot import ircot
from lcrag.methods.baselines.prompts import COMPLEXITY, worded
from lcrag.methods.baselines.rag import rag

Complexity: TypeAlias = Literal["none", "single", "multiple"]
_LABELS: dict[str, Complexity] = {"A": "none", "B": "single", "C": "multiple"}
PROGRAMS: Mapping[Complexity, Callable[[Question, Sequence[str]], Program]] = {
    "none": direct_inference,
    "single": rag,
    "multiple": ircot,
}
_LABEL = re.compile(r"\b[ABC]\b")


def adaptive_rag(
    question: Question,
    collections: Sequence[str],
    *,
    programs: Mapping[Complexity, Callable[[Question, Sequence[str]], Program]] = PROGRAMS,
    classifier: str | None = None,
    wording: str = "full",
) -> Program:
    """Chooses among direct inference, RAG and IRCoT by the question's complexity (Jeong et al., 2024, section 3).

    The paper trains a small classifier; here a model is asked, greedily and in a fresh context: the policy, or another
    that was trained for it. What it chose is `extra["complexity"]`; where it names no class, which counts as an invalid
    action, the question is taken for a complex one.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      programs: The program of each class.
      classifier: Name of the model that classifies, one of the runner's other models; None: the policy.
      wording: "full" or "atlas".
    """
    step = worded(COMPLEXITY, wording)
    completion = yield Complete(prompt=step.text(question), stop=step.stop, temperature=0.0, model=classifier)
    complexity = complexity_in(step.opened + completion.text)
    outcome = yield from programs[complexity or "multiple"](question, collections)
    return dataclasses.replace(
        outcome,
        invalid_actions=outcome.invalid_actions + (complexity is None),
        extra=outcome.extra | {"complexity": complexity},
    )


def complexity_in(text: str) -> Complexity | None:
    """The class that a text names, None if it names none.

    A policy that does not classify shows it: one that searches at once needs one search, one that answers none.
    """
    match parse_action(text):
        case SearchAction():
            return "single"
        case Answer(said):
            label = _LABEL.search(said)
            return _LABELS[label[0]] if label else "none"
    label = _LABEL.fullmatch(text.strip().rstrip("."))
    return _LABELS[label[0]] if label else None
