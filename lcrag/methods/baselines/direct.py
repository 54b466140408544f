"""Direct inference: the question, and what the policy remembers."""

from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes.requests import Program
from lcrag.methods.baselines.prompts import DIRECT, worded
from lcrag.methods.baselines.steps import answer_from


def direct_inference(question: Question, collections: Sequence[str], *, wording: str = "full") -> Program:
    """Answers from the policy's parameters alone (LcRL, appendix A.3).

    Args:
      question: What is asked.
      collections: Not used.
      wording: "full" or "atlas".
    """
    step = worded(DIRECT, wording)
    return (yield from answer_from(step, step.text(question)))
