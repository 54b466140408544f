"""Golden plans: reference plans with the answers to their sub-questions, as questions carry them in `extra`.

There are two forms; `previous` and `supports` are optional:

  golden_plans: [{"Q1": {"query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": []},
                  "Q2": {"query": "Where was #1 born?", "answer": ["Cincinnati"], "previous": ["Q1"], "supports": []}}]
  plan: {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]}, and
  sub_answers: {"#1": ["Steven Spielberg"], "#2": ["Cincinnati"]}

The first is what `lcrag curate golden_plans` writes, one or several graphs per question; the second is a single plan as
a policy writes it. `with_own_plan` and `with_decomposition` make golden plans without a teacher.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import gin

from lcrag.data.questions import Question
from lcrag.data.rows import UnusableQuestion
from lcrag.errors import UserError, typed
from lcrag.methods.globalrag.question_plan import DISORDERED, BadPlan, QuestionPlan, placeholder, plan_of

NO_STEPS, NO_ANSWER, ANOTHER_ANSWER = "no decomposition", "no sub-answer", "another answer"

_LIKE_A_PLACEHOLDER = re.compile(r"#(?=[0-9])")

GoldenGraph: TypeAlias = dict[str, dict[str, Any]]  # {Qn: {"query", "answer", "previous", "supports"}}


@dataclasses.dataclass(frozen=True)
class GoldenPlan:
    """A reference plan, and for each key its golden answers, aliases included."""

    plan: QuestionPlan
    answers: Mapping[str, tuple[str, ...]]


def golden_plans(extra: Mapping[str, Any]) -> tuple[GoldenPlan, ...]:
    """Returns the golden plans in `Question.extra`, an empty tuple if there are none.

    Raises:
      ValueError: a golden plan is invalid; the message names its place in `extra`.
    """
    if "golden_plans" in extra:
        graphs = extra["golden_plans"]
        if not isinstance(graphs, (list, tuple)) or not graphs:
            raise ValueError("golden_plans: it is not a list of at least one graph")
        return tuple(_at(f"golden_plans.{place}", graph) for place, graph in enumerate(graphs))
    if "plan" not in extra:
        return ()
    try:
        plan = plan_of(extra["plan"])
    except BadPlan as error:
        raise ValueError(f"plan: {error}") from error
    given = extra.get("sub_answers")
    answers = given if isinstance(given, Mapping) else {}
    names = {key: placeholder(key) for key in plan.questions}
    if unknown := set(answers) - set(names.values()):
        raise ValueError(f"sub_answers: {min(map(str, unknown))} is the placeholder of no question")
    return (GoldenPlan(plan, {key: _answers(f"sub_answers.{name}", answers.get(name)) for key, name in names.items()}),)


def golden_graph(graph: object) -> GoldenPlan:
    """Reads the golden plan of one graph.

    Raises:
      ValueError: the graph is invalid, or a `previous` differs from the answers that the `query` names.
    """
    if not isinstance(graph, Mapping) or not all(isinstance(node, Mapping) for node in graph.values()):
        raise ValueError("it is not an object of sub-questions")
    plan = plan_of({key: [_query(key, node), placeholder(str(key))] for key, node in graph.items()})
    for key, node in graph.items():
        named, given = sorted(plan.dependencies[key]), node.get("previous")
        if given is not None and not (isinstance(given, (list, tuple)) and sorted(map(str, given)) == named):
            raise ValueError(f"{key} has previous {given}, but its query names {named}")
    return GoldenPlan(plan, {key: _answers(f"answer of {key}", node.get("answer")) for key, node in graph.items()})


def graph_with_answers(
    plan: QuestionPlan, answers: Iterable[Sequence[str]], supports: Iterable[Sequence[str]]
) -> GoldenGraph:
    """Builds a golden graph of a plan, with the answers and supporting passages of each sub-question in order."""
    graph = {
        key: {"query": query, "answer": list(own), "previous": list(plan.dependencies[key]), "supports": list(ids)}
        for (key, query), own, ids in zip(plan.questions.items(), answers, supports, strict=True)
    }
    golden_graph(graph)  # checks that the reward can read it
    return graph


def with_own_plan(question: Question) -> Question:
    """Returns a one-hop question with itself as its only sub-question; one with a golden plan stays as it is.

    A space separates `#` from a following digit, which would read as a placeholder.
    """
    if golden_plans(question.extra):
        return question
    own = {"Q1": [_LIKE_A_PLACEHOLDER.sub("# ", question.text), "#1"]}
    extra = question.extra | {"plan": own, "sub_answers": {"#1": list(question.answers)}}
    return dataclasses.replace(question, extra=extra)


@gin.configurable
@typed
def with_own_plans(questions: Sequence[Question]) -> list[Question]:
    """Gives each question without a golden plan itself as its only sub-question; see `with_own_plan`.

    Raises:
      UserError: an existing golden plan is invalid.
    """
    try:
        return [with_own_plan(question) for question in questions]
    except ValueError as error:
        raise UserError(f"a golden plan of the questions cannot be used: {error}; correct it in their file") from error


@gin.configurable
def decomposition_plans() -> Callable[[Question], Question]:
    """Returns `with_decomposition`, for `english_questions.golden_plans` (MuSiQue)."""
    return with_decomposition


def with_decomposition(question: Question) -> Question:
    """Returns a question with its data set's decomposition as its golden plan, in `extra["golden_plans"]`.

    `extra["decomposition"]` is a list of `{"question", "answer", "support"}`. Step n becomes Qn unchanged, where `#k`
    stands for the answer of step k. A step whose answer is the question's gets the question's aliases too.

    Raises:
      UnusableQuestion: there is no decomposition, its steps are not a valid plan, a step names the answer of a later
        one or has no answer, or the last step's answer is not the question's.
    """
    steps = question.extra.get("decomposition")
    if not steps:
        raise UnusableQuestion(NO_STEPS, "the row has no steps to make a golden plan of")
    try:
        written = {f"Q{number}": [step["question"], f"#{number}"] for number, step in enumerate(steps, start=1)}
        plan = plan_of(written, question.text)
    except BadPlan as error:
        raise UnusableQuestion(error.fault.replace("_", " "), str(error)) from error
    if forward := plan.forward_reference:
        raise UnusableQuestion(DISORDERED.replace("_", " "), f"{forward[0]} names the answer of {forward[1]}")
    supports = ([step["support"]] if step["support"] else [] for step in steps)
    graph = graph_with_answers(plan, _step_answers(steps, question.answers), supports)
    return dataclasses.replace(question, extra=question.extra | {"golden_plans": [graph]})


def _step_answers(steps: Sequence[Mapping[str, Any]], golds: Sequence[str]) -> list[list[str]]:
    own = [step["answer"].strip() for step in steps]
    if not all(own):
        raise UnusableQuestion(NO_ANSWER, f"step {own.index('') + 1} has no answer")
    folded = {gold.casefold() for gold in golds}
    if own[-1].casefold() not in folded:
        detail = f"the last step's answer is {own[-1]!r}, the question's is {golds[0]!r}"
        raise UnusableQuestion(ANOTHER_ANSWER, detail)
    return [list(dict.fromkeys((each, *(golds if each.casefold() in folded else ())))) for each in own]


def _at(place: str, graph: object) -> GoldenPlan:
    try:
        return golden_graph(graph)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _query(key: object, node: Mapping[str, Any]) -> str:
    query = node.get("query")
    if not isinstance(query, str) or not query.strip():
        raise ValueError(f"{key} has no query, or an empty one")
    return query


def _answers(place: str, value: object) -> tuple[str, ...]:
    answers = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise ValueError(f"{place}: it is not a non-empty text or a list of such texts")
    return answers
