"""The dialogue in which a teacher makes a golden plan: it plans once, resolves each sub-question, and answers.

GlobalRAG, section 3.1 and appendix D. The environment hands out the sub-questions in topological order, with known
answers in place of their placeholders, and searches as in the policy's own episodes.
"""

import dataclasses
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import gin

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes import ContextFull, Generate, Observe, Outcome, Program, RetrievalFailure, Retrieve
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import RETHINK, answer_language, atlas
from lcrag.episodes.requests import Found
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import (
    ANSWER,
    PLAN,
    SEARCH,
    SUB_ANSWER,
    SearchAction,
    answer_in,
    closing,
    neutralise,
    parse_action,
)
from lcrag.errors import lookup
from lcrag.methods.globalrag.plans import (
    DISORDERED,
    BadPlan,
    QuestionPlan,
    parse_plan,
    placeholder,
    substituted,
)
from lcrag.retrieval.passages import Hit
from lcrag.rewards.matching import holds_answer

GIVEN_UP = "unknown"  # sub-answer of a teacher that gives up
NO_PLAN = "no_plan"

_PLAN = re.compile(rf"<{PLAN}>((?:(?!</?{PLAN}>).)*)</{PLAN}>", re.DOTALL)
_SUB_ANSWER = re.compile(rf"<{SUB_ANSWER}>\s*#([0-9]+)\s*=((?:(?!</?{SUB_ANSWER}>).)*)</{SUB_ANSWER}>\s*\Z", re.DOTALL)

_INSTRUCTIONS = (
    "You solve a multi-hop question with a search engine, step by step. First analyse the question: its constraints, "
    "and whether it needs a bridge, a comparison or a composition. Then decompose it into sub-questions and write them "
    "once, between <plan> and </plan>, as a JSON object: a key Q1, Q2, ... for each sub-question, in the order of "
    "answering, its value a list of the sub-question and the placeholder of its answer, #1, #2, ... Each sub-question "
    "must be short and answerable by itself; one that needs an earlier answer names its placeholder. Example: "
    '<plan> {"Q1": ["Who directed the film Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]} </plan>\n'
    "Afterwards you are given the sub-questions one by one. For each, write <search> query </search> and read what is "
    "found between <information> and </information>, as often as you need. As soon as the passages tell the answer, "
    "write <subAnswer> #1 = value </subAnswer> with the placeholder of that sub-question and nothing but the value. "
    "Rely on the passages alone; if they do not tell the answer whatever you search for, write unknown as the value. "
    "At last you are asked for the answer to the question: write it between <answer> and </answer>, as short as can be."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording:
    """The environment's messages; `asks` is whether every message says what the teacher should write."""

    instructions: str | None
    style: str
    asks: bool

    def task(self, question: Question) -> str:
        """The opening message."""
        if not self.asks:
            return atlas(question)
        wanted = answer_language(question)
        note = "" if wanted == "en" else f" The answers must be in {language_of(wanted).name}."
        return f"Question: {neutralise(question.text)}{note}\nWrite the plan.\n"

    def step(self, key: str, asked: str) -> str:
        """Hands out a sub-question, known answers in place of their placeholders."""
        wanted = f"Search, or write <subAnswer> {placeholder(key)} = value </subAnswer>.\n" if self.asks else ""
        return f"\n{key}: {neutralise(asked)}\n{wanted}"

    def last(self, question: Question, sub_answers: Mapping[str, str]) -> str:
        """Asks for the final answer."""
        known = "".join(f"{placeholder(key)} = {neutralise(value)}\n" for key, value in sub_answers.items())
        wanted = "Write the answer to the question between <answer> and </answer>: " if self.asks else ""
        return f"\n{known}{wanted}{neutralise(question.text)}\n"


WORDINGS = {
    "full": Wording(instructions=_INSTRUCTIONS, style="rag_r1", asks=True),
    "atlas": Wording(instructions=None, style="atlas", asks=False),
}


@gin.configurable(denylist=["question", "collections"])
def golden_trajectory(
    question: Question,
    collections: Sequence[str],
    *,
    attempts: int = 15,
    passages: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 1800,
) -> Program:
    """Runs a teacher's golden trajectory (GlobalRAG, appendix D).

    The outcome's `extra` holds `plan` as an object or None, and `plan_fault` if it is None; `unresolved`, the key of a
    sub-question that was given up; and for each resolved key its `sub_answers` and `supports`, the ids of the retrieved
    passages that hold the sub-answer.

    Args:
      question, collections and others: See `lcrag.methods`; the route is of the attempts for one sub-question.
      attempts: Maximum searches for one sub-question; an invalid action counts as one.
    """
    words, progress = lookup(WORDINGS, wording, "wording of golden plans"), _Progress()

    def request(query: str, attempt: int) -> Retrieve:
        return Retrieve((query,), route(attempt, question.language, collections), passages)

    def shown(found: Found | RetrievalFailure) -> Observe:
        return Observe(information(found, words.style, observation_tokens))

    try:
        yield Observe(words.task(question), system=words.instructions)
        progress.plan = read_plan((yield Generate(stop=(closing(PLAN),))), question.text)
        if not isinstance(progress.plan, QuestionPlan):
            return progress.outcome()
        for key in progress.plan.order:
            asked = substituted(progress.plan.questions[key], progress.sub_answers)
            yield Observe(words.step(key, asked))
            if not (yield from _resolve(key, progress, attempts, request, shown)):
                progress.unresolved = key
                return progress.outcome()
        yield Observe(words.last(question, progress.sub_answers))
        return progress.outcome(answer_in((yield Generate(stop=(closing(ANSWER),)))))
    except ContextFull:
        return progress.outcome()


def read_plan(text: str, question: str = "") -> QuestionPlan | str:
    """Returns the last plan in a teacher's text, or its fault: `NO_PLAN`, one of `FAULTS`, or `DISORDERED`.

    Args:
      text: The text.
      question: What the plan is for, see `plan_of`.
    """
    written = _PLAN.findall(text)
    if not written:
        return NO_PLAN
    try:
        plan = parse_plan(written[-1], question)
    except BadPlan as error:
        return error.fault
    return DISORDERED if plan.forward_reference else plan


def read_sub_answer(key: str, text: str) -> str | None:
    """Returns the value of the sub-answer to `key` that ends a text, or None."""
    found = _SUB_ANSWER.search(text)
    return found[2].strip() or None if found and f"Q{found[1]}" == key else None


@dataclasses.dataclass
class _Progress:
    """The state of a trajectory."""

    plan: QuestionPlan | str = NO_PLAN
    sub_answers: dict[str, str] = dataclasses.field(default_factory=dict)
    supports: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    unresolved: str | None = None
    invalid: int = 0

    def resolve(self, key: str, value: str, found: Sequence[Hit]) -> bool:
        """Records a sub-answer and the passages that hold it; False if the teacher gives up."""
        if value.casefold() == GIVEN_UP:
            return False
        holding = (hit.id for hit in found if holds_answer([f"{hit.title} {hit.text}"], [value]))
        self.sub_answers[key], self.supports[key] = value, list(dict.fromkeys(holding))
        return True

    def outcome(self, answer: str | None = None) -> Outcome:
        plan = self.plan if isinstance(self.plan, QuestionPlan) else None
        return Outcome(
            answer=answer,
            invalid_actions=self.invalid,
            counts={"sub_questions": len(plan.questions) if plan else 0},
            extra={
                "plan": plan.as_object() if plan else None,
                "plan_fault": None if plan else self.plan,
                "unresolved": self.unresolved,
                "sub_answers": self.sub_answers,
                "supports": self.supports,
            },
        )


def _resolve(
    key: str,
    progress: _Progress,
    attempts: int,
    request: Callable[[str, int], Retrieve],
    shown: Callable[[Found | RetrievalFailure], Observe],
) -> Generator[Any, Any, bool]:
    """Lets the teacher search until it answers a sub-question; False if it gives up or runs out of attempts."""
    found: list[Hit] = []
    for attempt in range(1, attempts + 1):
        text = yield Generate(stop=(closing(SEARCH), closing(SUB_ANSWER)))
        if (value := read_sub_answer(key, text)) is not None:
            return progress.resolve(key, value, found)
        match parse_action(text):
            case SearchAction(query):
                answer = yield request(query, attempt)
                if not isinstance(answer, RetrievalFailure):
                    found += [hit for languages in answer for hits in languages for hit in hits if isinstance(hit, Hit)]
                yield shown(answer)
            case _:
                progress.invalid += 1
                yield Observe(RETHINK)
    value = read_sub_answer(key, (yield Generate(stop=(closing(SUB_ANSWER),))))  # last turn, without a search
    return value is not None and progress.resolve(key, value, found)
