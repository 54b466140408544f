"""Golden plans that need no teacher: a question of one hop is its own, and others come with their decomposition."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lcrag.data.questions import Question
from lcrag.methods.globalrag.plans import BadPlan, Plan, golden_graph, golden_plans, plan_of

NO_STEPS, NO_ANSWER = "no decomposition", "no sub-answer"
DISORDERED, ANOTHER_ANSWER = "inconsistent order", "another answer"

_LIKE_A_PLACEHOLDER = re.compile(r"#(?=[0-9])")


class Unplanned(ValueError):
    """A decomposition that is no golden plan.

    Attributes:
      cause: Why not, in few words, to be counted: a fault of `plan_of`, or one of this module's.
    """

    def __init__(self, cause: str, detail: str):
        super().__init__(f"{cause}: {detail}")
        self.cause = cause


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


def with_decomposition(question: Question) -> Question:
    """The question with its data set's own decomposition as its golden plan, in `extra["golden_plans"]`.

    Step n is Qn, as it stands there, `#k` in it being the answer of step k; `supports` is the step's paragraph. Where a
    step's answer is the question's, the aliases are answers too.

    Args:
      question: With `extra["decomposition"]`, a list of `{"question", "answer", "support"}`; see
        `lcrag.data.english.asked.Asked`.

    Raises:
      Unplanned: it has none, the steps are no plan, one of them names a later one's answer or has none, or the last
        one is answered otherwise than the question.
    """
    steps = question.extra.get("decomposition")
    if not steps:
        raise Unplanned(NO_STEPS, "the row has no steps to make a golden plan of")
    plan = _plan(steps)
    answers = _answers(steps, question.answers)
    graph = {
        key: {
            "query": query,
            "answer": answer,
            "previous": list(plan.dependencies[key]),
            "supports": [step["support"]] if step["support"] else [],
        }
        for (key, query), answer, step in zip(plan.questions.items(), answers, steps, strict=True)
    }
    golden_graph(graph)  # what is offered is what the reward reads
    return dataclasses.replace(question, extra=question.extra | {"golden_plans": [graph]})


def _plan(steps: Sequence[Mapping[str, Any]]) -> Plan:
    try:
        plan = plan_of({f"Q{number}": [step["question"], f"#{number}"] for number, step in enumerate(steps, start=1)})
    except BadPlan as error:
        raise Unplanned(error.fault.replace("_", " "), str(error)) from error
    keys = list(plan.questions)
    for place, key in enumerate(keys):
        if later := next((name for name in plan.dependencies[key] if name in keys[place:]), None):
            raise Unplanned(DISORDERED, f"{key} names the answer of {later}")
    return plan


def _answers(steps: Sequence[Mapping[str, Any]], golds: Sequence[str]) -> list[list[str]]:
    """The answers of each step."""
    own = [step["answer"].strip() for step in steps]
    if not all(own):
        raise Unplanned(NO_ANSWER, f"step {own.index('') + 1} has none")
    folded = {gold.casefold() for gold in golds}
    if own[-1].casefold() not in folded:
        raise Unplanned(ANOTHER_ANSWER, f"the last step is answered with {own[-1]!r}, the question with {golds[0]!r}")
    return [list(dict.fromkeys((each, *(golds if each.casefold() in folded else ())))) for each in own]
