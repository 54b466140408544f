"""Zero-shot Adaptive-RAG: a question's complexity decides whether to search not at all, once, or step by step."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import ConfiguredProgram
from lcrag.episodes.requests import Complete, Program
from lcrag.episodes.tags import Answer, SearchAction, parse_action
from lcrag.errors import lookup
from lcrag.methods.baselines.prompts import COMPLEXITY
from lcrag.methods.baselines.rag import direct_inference, rag
from lcrag.methods.baselines.sentence_searches import ircot

Complexity: TypeAlias = Literal["none", "single", "multiple"]
_LABELS: dict[str, Complexity] = {"A": "none", "B": "single", "C": "multiple"}
PROGRAMS: Mapping[str, ConfiguredProgram] = {
    "none": direct_inference,
    "single": rag,
    "multiple": ircot,
}
_LABEL = re.compile(r"\b[ABC]\b")


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


def complexity_in(text: str) -> Complexity | None:
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
