"""Reads an episode in GlobalRAG's format: its plan, its sub-answers, and whether it is well formed.

Only the policy's own text is read. Tags are exact, as stop strings are; text between tag pairs has no meaning.
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Sequence

from lcrag.episodes.tags import ANSWER, PLAN, SEARCH, SUB_ANSWER, SUB_PLAN, TAGS, THINK, Boxes, boxes_in
from lcrag.methods.globalrag.plans import FAULTS, BadPlan, QuestionPlan, parse_plan

# Why an episode has no plan; the first that applies counts.
PLAN_FAULTS: tuple[str, ...] = ("missing", "malformed", "several", "late", *FAULTS)

_TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")
_SUB_ANSWER = re.compile(r"#([0-9]+)\s*=\s*(\S.*)", re.DOTALL)
_BOXES = {THINK: "t", PLAN: "p", SEARCH: "s", SUB_ANSWER: "a", ANSWER: "A"}
_SHOWN, _MALFORMED = "i", "x"
# Thoughts, the plan, sub-plans (thoughts, an answered search, a sub-answer), thoughts, the answer.
_FORM = re.compile(r"t+p(t*\(t+si(t*si)*t*a\))+t+A")


@dataclasses.dataclass(frozen=True)
class PlannedText:
    """The policy's text of each turn, the numbers of the turns after which results were shown, and the question."""

    texts: Sequence[str]
    shown: Collection[int]
    question: str = ""

    @functools.cached_property
    def plan(self) -> QuestionPlan | str:
        """The plan, or its fault, one of `PLAN_FAULTS`."""
        if not self._plan_boxes.tags:
            return "missing"
        if self._plan_boxes.stray:
            return "malformed"
        if len(self._plan_boxes.contents) > 1:
            return "several"
        if self.shown and boxes_in(self.texts[min(self.shown) + 1 :], PLAN).tags:
            return "late"
        try:
            return parse_plan(self._plan_boxes.contents[0], self.question)
        except BadPlan as error:
            return error.fault

    @property
    def plan_text(self) -> str | None:
        """The text between the plan's tags, None unless there is exactly one pair."""
        return self._plan_boxes.contents[0] if self._plan_boxes.tags == 2 and not self._plan_boxes.stray else None

    @functools.cached_property
    def _plan_boxes(self) -> Boxes:
        return boxes_in(self.texts, PLAN)

    @functools.cached_property
    def sub_answers(self) -> list[tuple[str, str]]:
        """(key, value) of each well-formed sub-answer `#n = value`, in order; its key may be unknown to the plan."""
        found = (_SUB_ANSWER.fullmatch(content) for content in self._sub_answer_boxes.contents)
        return [(f"Q{match[1]}", match[2]) for match in found if match]

    @functools.cached_property
    def _sub_answer_boxes(self) -> Boxes:
        return boxes_in(self.texts, SUB_ANSWER)

    @property
    def resolved(self) -> dict[str, str]:
        """Key -> last sub-answer, for each question of the plan; empty without a plan."""
        plan = self.plan
        known = plan.questions if isinstance(plan, QuestionPlan) else {}
        return {key: value for key, value in self.sub_answers if key in known}

    @functools.cached_property
    def marks(self) -> str:
        """All tag pairs in order, one character each, on which the format is checked.

        t(hink), p(lan), s(earch), a (sub-answer), A(nswer), brackets for the tags of sub-plans, i for information shown
        by the environment, and x for anything malformed: a stray tag, an empty pair, a tag of another method, or
        information that the policy wrote.
        """
        return "".join(_marks(text) + _SHOWN * (number in self.shown) for number, text in enumerate(self.texts))

    @property
    def well_formed(self) -> bool:
        """Whether the text has the format (section 3.2.4).

        A thought precedes the plan and another the answer; each sub-plan between them has a thought, a search, its
        results and a sub-answer; nothing is malformed, and there is one plan and one answer.
        """
        return _FORM.fullmatch(self.marks) is not None

    @property
    def counts(self) -> dict[str, int]:
        """Counts for the metrics, including the fault of a bad plan."""
        fault = None if isinstance(self.plan, QuestionPlan) else self.plan
        questions = self.plan.questions if isinstance(self.plan, QuestionPlan) else {}
        known = [key for key, _ in self.sub_answers if key in questions]
        boxes = self._sub_answer_boxes
        unpaired = re.sub(r"\(([^()]*)\)", r"\1", self.marks)
        return {
            "plan": int(fault is None),
            **{f"plan_{name}": int(name == fault) for name in PLAN_FAULTS},
            "sub_questions": len(questions),
            "sub_answers": len(set(known)),
            "missing_sub_answers": len(questions) - len(set(known)),
            "unknown_sub_answers": len(self.sub_answers) - len(known),
            "repeated_sub_answers": len(known) - len(set(known)),
            "malformed_sub_answers": boxes.stray + len(boxes.contents) - len(self.sub_answers),
            "malformed_tags": sum(map(unpaired.count, (_MALFORMED, "(", ")"))),
            "well_formed": int(self.well_formed),
        }


def _marks(text: str) -> str:
    """The marks of one text; a pair that encloses another tag is malformed."""
    marks, tags = [], list(_TAG.finditer(text))
    while tags:
        tag = tags.pop(0)
        if tag[2] == SUB_PLAN:
            marks.append(")" if tag[1] else "(")
        elif tag[2] in _BOXES and tags and tags[0][0] == f"</{tag[2]}>" and not tag[1]:
            content = text[tag.end() : tags.pop(0).start()]
            marks.append(_BOXES[tag[2]] if content.strip() else _MALFORMED)
        else:
            marks.append(_MALFORMED)
    return "".join(marks)
