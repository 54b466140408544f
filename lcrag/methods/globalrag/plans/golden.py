"""Golden plans: what a teacher's plan was, and what each of its sub-questions is answered with.

A question carries them in `extra`, in one of two forms:

  golden_plans: [{"Q1": {"query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": []},
                  "Q2": {"query": "Where was #1 born?", "answer": ["Cincinnati"], "previous": ["Q1"], "supports": []}}]
  plan: {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]}, and
  sub_answers: {"#1": ["Steven Spielberg"], "#2": ["Cincinnati"]}

The first is what `lcrag curate golden_plans` writes, several graphs a question where there are several; the second is
one golden plan as a policy writes it. `previous` and `supports` may be left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lcrag.methods.globalrag.plans.plan import BadPlan, Plan, placeholder, plan_of


@dataclasses.dataclass(frozen=True)
class GoldenPlan:
    """A plan to compare with.

    Attributes:
      plan: Its sub-questions.
      answers: The golden answers of each key, aliases included.
    """

    plan: Plan
    answers: Mapping[str, tuple[str, ...]]


def golden_plans(extra: Mapping[str, Any]) -> tuple[GoldenPlan, ...]:
    """The golden plans that a question carries; none is an empty tuple.

    Args:
      extra: `Question.extra`.

    Raises:
      ValueError: what it carries is none; the text says where in `extra` and why.
    """
    if "golden_plans" in extra:
        graphs = extra["golden_plans"]
        if not isinstance(graphs, (list, tuple)) or not graphs:
            raise ValueError("golden_plans: it is no list of one graph or more")
        return tuple(_at(f"golden_plans.{place}", graph) for place, graph in enumerate(graphs))
    if "plan" not in extra:
        return ()
    try:
        plan = plan_of(extra["plan"])
    except BadPlan as error:
        raise ValueError(f"plan: {error}") from error
    given = extra.get("sub_answers")
    answers = given if isinstance(given, Mapping) else {}
    if unknown := set(answers) - {placeholder(key) for key in plan.questions}:
        raise ValueError(f"sub_answers: {min(map(str, unknown))} is the placeholder of no question")
    by_key = {key: answers.get(placeholder(key)) for key in plan.questions}
    return (GoldenPlan(plan, {key: _answers(f"sub_answers.{placeholder(key)}", by_key[key]) for key in by_key}),)


def golden_graph(graph: object) -> GoldenPlan:
    """The golden plan of one graph `{Qn: {"query", "answer", "previous", "supports"}}`.

    Raises:
      ValueError: it is none; `previous`, where it is given, has to name what `query` names.
    """
    if not isinstance(graph, Mapping) or not all(isinstance(node, Mapping) for node in graph.values()):
        raise ValueError("it is no object of sub-questions")
    plan = plan_of({key: [_query(key, node), placeholder(str(key))] for key, node in graph.items()})
    for key, node in graph.items():
        named, said = sorted(plan.dependencies[key]), node.get("previous")
        if said is not None and not (isinstance(said, (list, tuple)) and sorted(map(str, said)) == named):
            raise ValueError(f"{key} has previous {said}, but its query names {named}")
    return GoldenPlan(plan, {key: _answers(f"answer of {key}", node.get("answer")) for key, node in graph.items()})


def _at(place: str, graph: object) -> GoldenPlan:
    try:
        return golden_graph(graph)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _query(key: object, node: Mapping[str, Any]) -> str:
    query = node.get("query")
    if not isinstance(query, str) or not query.strip():
        raise ValueError(f"{key} has no query that says something")
    return query


def _answers(place: str, value: object) -> tuple[str, ...]:
    """One answer or several, as a tuple."""
    answers = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise ValueError(f"{place}: it is no text that says something, nor a list of such")
    return answers
