"""Golden plans of questions that need none: of one hop, a question is its own plan."""

import dataclasses
import re

from lcrag.data.questions import Question
from lcrag.plans import golden_plans

_LIKE_A_PLACEHOLDER = re.compile(r"#(?=[0-9])")


def with_own_plan(question: Question) -> Question:
    """The question with a golden plan of one sub-question, itself, unless it carries one already.

    A `#` before a digit is set apart from it, so that it is no placeholder.

    Raises:
      ValueError: the golden plan that it carries is none.
    """
    if golden_plans(question.extra):
        return question
    own = {"Q1": [_LIKE_A_PLACEHOLDER.sub("# ", question.text), "#1"]}
    extra = question.extra | {"plan": own, "sub_answers": {"#1": list(question.answers)}}
    return dataclasses.replace(question, extra=extra)
