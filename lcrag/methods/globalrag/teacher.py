"""The rule-based teacher of golden plans: it cuts a question by its words, and searches for what it does not know.

It reads the question's kind, subjects and golden plan, which are words and no facts, the names of all entities, and
what the searches have shown. So it fails where a collection lacks a fact or holds an outdated one.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from lcrag.atlas.oracle import ATLAS_LINE, Oracle
from lcrag.atlas.wording import query_text
from lcrag.data.questions import Question
from lcrag.data.seeded_order import in_share
from lcrag.methods.globalrag.plans import Plan, plan_of
from lcrag.methods.rag_r1.oracle import Known, Wanted

GIVEN_UP = "unknown"


@dataclasses.dataclass(frozen=True)
class PlanTeacher:
    """Plays an episode of `golden_trajectory` in its atlas wording, one text at a time.

    Attributes:
      budget: Searches it makes for a sub-question; then it gives up.
      careless: Share of the questions that it plans in a circle.
      seed: Of which questions these are.
    """

    budget: int = 2
    careless: float = 0.0
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the teacher writes next.

        Args:
          question: A question of the atlas: one hop, two hops, or a comparison.
          turns: (by, text) of the turns so far, the opening prompt included; by is "policy" or "environment".
        """
        written = [text for by, text in turns if by == "policy"]
        if not written:
            return f"<think> {question.text}</think><plan> {self._plan(question)}</plan>"
        reader = Oracle(line=ATLAS_LINE)
        known = Known(question, reader, reader.readings(text for by, text in turns if by == "environment"))
        keys = list(plan_of_question(question).questions)
        resolved = [place for place, text in enumerate(written) if "</subAnswer>" in text]
        if len(resolved) == len(keys):
            return f"<answer> {known.answer()}</answer>"
        searches = sum("</search>" in text for text in written[resolved[-1] + 1 if resolved else 0 :])
        return self._step(keys[len(resolved)], _wanted(known, len(resolved)), known, searches)

    def _step(self, key: str, wanted: Wanted, known: Known, searches: int) -> str:
        value = known.value(wanted)
        if value is None and searches < self.budget:
            return f"<search> {query_text(known.question.language, wanted.relation, wanted.name)}</search>"
        return f"<subAnswer> #{key.removeprefix('Q')} = {value or GIVEN_UP}</subAnswer>"

    def _plan(self, question: Question) -> str:
        plan = plan_of_question(question)
        if not in_share(question.coupling, self.careless, self.seed):
            return plan.as_json()
        first, *_ = plan.questions
        return _circular(plan.questions, first).as_json()


def plan_of_question(question: Question) -> Plan:
    """The golden plan of a question of the atlas: of one hop, the question itself."""
    return plan_of(question.extra.get("plan", {"Q1": [question.text, "#1"]}))


def _circular(questions: Mapping[str, str], first: str) -> Plan:
    """The plan with the last answer named in the first question."""
    last = f"#{list(questions)[-1].removeprefix('Q')}"
    return Plan({key: f"{text} {last}" if key == first else text for key, text in questions.items()})


def _wanted(known: Known, place: int) -> Wanted:
    """The fact that a sub-question asks for."""
    path = known.path({}, guess=False, asked=())
    return path[min(place, len(path) - 1)]
