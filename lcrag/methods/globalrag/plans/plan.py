"""A plan (GlobalRAG, section 3.1): sub-questions, each with a placeholder for its answer, as one strict JSON object.

{"Q1": ["What is the most populous city of the USA?", "#1"], "Q2": ["Who was the first mayor of #1?", "#2"]}

`#1` in the question of Q2 is the answer of Q1, so Q2 depends on Q1: a plan is a directed acyclic graph.
"""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

if TYPE_CHECKING:
    import networkx

# What can be wrong with a plan, in the order in which it is looked for.
Fault: TypeAlias = Literal[
    "invalid_json",  # not JSON: NaN and lone surrogates are none either
    "duplicate_key",
    "not_an_object",
    "empty",
    "too_many_questions",
    "bad_key",  # not Q1, Q2, ...
    "bad_entry",  # not a question that says something and a placeholder
    "bad_placeholder",  # that of Qn is not #n
    "unknown_reference",  # a question names an answer that no question gives
    "cyclic",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

MOST_QUESTIONS = 16  # golden plans have up to about six; what is longer is refused, so that every cost is bounded
_NEUTRAL_WORD = "something"
_KEY = re.compile(r"Q[1-9][0-9]{0,3}")
_REFERENCE = re.compile(r"#([0-9]+)")


class BadPlan(ValueError):
    """A text or an object that is no plan.

    Attributes:
      fault: What is wrong with it, one of `FAULTS`.
    """

    def __init__(self, fault: Fault, detail: str):
        super().__init__(detail)
        self.fault = fault


@dataclasses.dataclass(frozen=True)
class Plan:
    """A valid plan; `parse_plan` and `plan_of` build it.

    Attributes:
      questions: The sub-question of each key `Qn`, placeholders included, in the order written.
    """

    questions: Mapping[str, str]

    @functools.cached_property
    def dependencies(self) -> Mapping[str, tuple[str, ...]]:
        """The keys whose answers each question names, each once, in the order named."""
        return {key: tuple(dict.fromkeys(_references(question))) for key, question in self.questions.items()}

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """The keys, each behind those it depends on, otherwise as written."""
        return tuple(graphlib.TopologicalSorter(self.dependencies).static_order())

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(Qk, Qi) for each #k in the question of Qi."""
        return tuple((before, key) for key, names in self.dependencies.items() for before in names)

    def graph(self) -> networkx.DiGraph:
        """A node for each key, its `question` as attribute; an edge Qk -> Qi for each #k in the question of Qi."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from((key, {"question": question}) for key, question in self.questions.items())
        graph.add_edges_from(self.edges)
        return graph

    def canonical(self) -> dict[str, str]:
        """The questions with a neutral word in place of every placeholder: numbering does not change them."""
        return {key: _REFERENCE.sub(_NEUTRAL_WORD, question) for key, question in self.questions.items()}

    def as_json(self) -> str:
        """The plan as a policy writes it, on one line; `parse_plan` reads it back."""
        return json.dumps({key: [text, placeholder(key)] for key, text in self.questions.items()}, ensure_ascii=False)


def parse_plan(text: str) -> Plan:
    """Reads a plan from the JSON that somebody wrote.

    Raises:
      BadPlan: it is not one; `fault` says why.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except BadPlan:
        raise
    except (ValueError, RecursionError) as error:  # a lone surrogate cannot be encoded, a deep nesting not be read
        raise BadPlan("invalid_json", f"the plan is no JSON ({type(error).__name__})") from error
    return plan_of(value)


def plan_of(value: object) -> Plan:
    """The plan of what stood in JSON: `{"Q1": ["...", "#1"], ...}`.

    Raises:
      BadPlan: it is not one; `fault` says why.
    """
    if not isinstance(value, Mapping):
        raise BadPlan("not_an_object", "the plan is no object of questions")
    if not value:
        raise BadPlan("empty", "the plan has no question")
    if len(value) > MOST_QUESTIONS:
        raise BadPlan("too_many_questions", f"the plan has {len(value)} questions, more than {MOST_QUESTIONS}")
    plan = Plan({_key(key): _question(key, entry) for key, entry in value.items()})
    for key, names in plan.dependencies.items():
        if unknown := [name for name in names if name not in plan.questions]:
            raise BadPlan("unknown_reference", f"{key} names {placeholder(unknown[0])}, which no question answers")
    try:
        graphlib.TopologicalSorter(plan.dependencies).prepare()
    except graphlib.CycleError as error:
        raise BadPlan("cyclic", f"{' needs '.join(reversed(error.args[1]))}: the plan is cyclic") from error
    return plan


def placeholder(key: str) -> str:
    """`#n` of `Qn`."""
    return f"#{key.removeprefix('Q')}"


def substituted(question: str, answers: Mapping[str, str]) -> str:
    """A sub-question with the answers it names, by key, in place of their placeholders; others stay."""
    return _REFERENCE.sub(lambda name: answers.get(f"Q{name[1]}", name[0]), question)


def _references(question: str) -> list[str]:
    return [f"Q{number}" for number in _REFERENCE.findall(question)]


def _key(key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise BadPlan("bad_key", f"the key {key!r} is not Q1, Q2 and so on")
    return key


def _question(key: str, entry: object) -> str:
    pair = list(entry) if isinstance(entry, (list, tuple)) else []
    if len(pair) != 2 or not all(isinstance(part, str) for part in pair) or not pair[0].strip():
        raise BadPlan("bad_entry", f"{key} is not a question and a placeholder")
    if pair[1] != placeholder(key):
        raise BadPlan("bad_placeholder", f"the placeholder of {key} is {pair[1]!r}, not {placeholder(key)}")
    return pair[0].strip()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise BadPlan("duplicate_key", "a key of the plan stands twice")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
