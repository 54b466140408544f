"""The rule-based teacher of GlobalRAG's program: it plans, resolves one sub-question after the other, and answers.

It reads the question's kind, subject and golden plan, which are words and no facts, the names of all entities, and what
the searches have shown. It is wrong where a collection lacks a fact, and may be told to plan carelessly.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

from lcrag.atlas.oracle import Oracle
from lcrag.atlas.wording import UNKNOWN, query_text
from lcrag.data.questions import Question
from lcrag.data.seeded_order import in_share
from lcrag.methods.globalrag.planned_questions import with_own_plan
from lcrag.methods.rag_r1.oracle import Known, Wanted

_PLACEHOLDER = re.compile(r"#[0-9]+")


@dataclasses.dataclass(frozen=True)
class PlanOracle:
    """Plays an episode of `globalrag` in its atlas wording, one text at a time.

    Attributes:
      budget: Searches it may make; then it answers as well as it can.
      careless: Share of the questions in whose plan no sub-question names another's answer; it carries the plan out as
        if they did.
      seed: Of which questions these are.
    """

    budget: int = 4
    careless: float = 0.0
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the policy should write next.

        Args:
          question: A question of the atlas: one hop, two hops, or a comparison.
          turns: (by, text) of the turns so far, the opening prompt included or not; by is "policy" or "environment".
        """
        reader = Oracle()
        known = Known(question, reader, reader.readings(text for by, text in turns if by == "environment"))
        searches = sum("</search>" in text for by, text in turns if by == "policy")
        goals = list(with_own_plan(question).extra["plan"])
        if not searches:
            subjects = ", ".join(wanted.name for wanted in known.given)
            return f"<think> {subjects}</think><plan> {self._plan(question)}</plan>{self._sub_plan(known, 0)}"
        value = _value(known, searches - 1)
        resolved = f"<think> {value}</think><subAnswer> #{searches} = {value}</subAnswer></subPlan>"
        if searches < min(len(goals), self.budget):
            return resolved + self._sub_plan(known, searches)
        answer = known.answer()
        return f"{resolved}<think> {answer}</think><answer> {answer}</answer>"

    def _sub_plan(self, known: Known, place: int) -> str:
        """The beginning of a sub-plan, to the end of its search."""
        wanted = _wanted(known, place)
        query = query_text(known.question.language, wanted.relation, wanted.name)
        return f"<subPlan><think> {wanted.name}</think><search> {query}</search>"

    def _plan(self, question: Question) -> str:
        plan: Mapping[str, Sequence[str]] = with_own_plan(question).extra["plan"]
        if in_share(question.coupling, self.careless, self.seed):
            name = question.extra.get("entity", "")
            plan = {key: [_PLACEHOLDER.sub(name, text), variable] for key, (text, variable) in plan.items()}
        return json.dumps(plan, ensure_ascii=False)


def _wanted(known: Known, place: int) -> Wanted:
    """The fact that a sub-question asks for; where the bridge to it was not found, as if it were called "unknown"."""
    path = known.path({}, guess=False, asked=())
    if place < len(path):
        return path[place]
    assert known.second_relation is not None
    return Wanted(known.second_relation, "", UNKNOWN[known.question.language])


def _value(known: Known, place: int) -> str:
    """What the passages say of a sub-question's fact, else "unknown"."""
    return known.value(_wanted(known, place)) or UNKNOWN[known.question.language]
