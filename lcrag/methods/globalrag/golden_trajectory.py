"""The dialogue in which a teacher makes a golden plan: it plans once, resolves each sub-question, and answers.

GlobalRAG, section 3.1 and appendix D. The environment leads: it hands out the sub-questions in topological order, with
the answers so far in place of their placeholders, and searches as the policy's own episodes do.
"""

import dataclasses
import json
import re
from collections.abc import Generator, Sequence
from typing import Any

from lcrag.data.questions import Question
from lcrag.episodes import (
    ContextFull,
    Generate,
    Observe,
    Outcome,
    Program,
    RetrievalFailure,
    Retrieve,
    Route,
    SearchAction,
    answer_in,
    native_only,
    parse_action,
)
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import RETHINK
from lcrag.episodes.requests import Found
from lcrag.episodes.tags import ANSWER, PLAN, SEARCH, SUB_ANSWER, closing
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden_wording import WORDINGS
from lcrag.methods.globalrag.plans import BadPlan, Plan, parse_plan, substituted
from lcrag.retrieval.passages import Hit
from lcrag.rewards.containment import holds_answer

UNKNOWN = "unknown"  # the sub-answer of a teacher that gives up
NO_PLAN, DISORDERED = "no_plan", "inconsistent_order"

_PLAN = re.compile(rf"<{PLAN}>((?:(?!</?{PLAN}>).)*)</{PLAN}>", re.DOTALL)
_SUB_ANSWER = re.compile(rf"<{SUB_ANSWER}>\s*#([0-9]+)\s*=((?:(?!</?{SUB_ANSWER}>).)*)</{SUB_ANSWER}>\s*\Z", re.DOTALL)


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
    """A golden trajectory (GlobalRAG, appendix D).

    The outcome's `extra` says what became of it: `plan` as an object, None if there is none, and then `plan_fault`;
    `unresolved`, the key of a sub-question that was given up; of each key that was resolved, `sub_answers` and
    `supports`, ids of the passages found for it that hold the sub-answer.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      attempts: Searches for one sub-question at most; an invalid action counts as one.
      passages: Passages of each searched language.
      route: Which collections attempt number b goes to.
      wording: "full" for models that follow instructions, "atlas" for the built-in world's oracle.
      observation_tokens: At most this many tokens for what one search shows.

    Raises:
      UserError: there is no such wording, or no attempt is allowed.
    """
    if attempts < 1:
        raise UserError(f"golden_trajectory.attempts is {attempts}: give it a value of 1 or more")
    if wording not in WORDINGS:
        raise UserError(f"there is no wording {wording!r} of golden plans: choose one of {', '.join(WORDINGS)}")
    words, account = WORDINGS[wording], _Account()
    searching = _Searching(question.language, collections, attempts, passages, route, words.style, observation_tokens)
    try:
        yield Observe(words.task(question), system=words.instructions)
        account.plan = read_plan((yield Generate(stop=(closing(PLAN),))))
        if not isinstance(account.plan, Plan):
            return account.outcome()
        for key in account.plan.order:
            asked = substituted(account.plan.questions[key], account.sub_answers)
            yield Observe(words.step(key, asked))
            if not (yield from _resolve(key, account, searching)):
                account.unresolved = key
                return account.outcome()
        yield Observe(words.last(question, account.sub_answers))
        return account.outcome(answer_in((yield Generate(stop=(closing(ANSWER),)))))
    except ContextFull:
        return account.outcome()


def read_plan(text: str) -> Plan | str:
    """The plan in what a teacher wrote, or why there is none: `NO_PLAN`, a fault of `parse_plan`, or `DISORDERED`.

    The last plan of the text counts; each sub-question may only name answers of earlier ones.
    """
    written = _PLAN.findall(text)
    if not written:
        return NO_PLAN
    try:
        plan = parse_plan(written[-1])
    except BadPlan as error:
        return error.fault
    keys = list(plan.questions)
    ordered = all(keys.index(name) < keys.index(key) for key in keys for name in plan.dependencies[key])
    return plan if ordered else DISORDERED


def read_sub_answer(key: str, text: str) -> str | None:
    """The value of the sub-answer to `key` with which a text ends; None if it does not end with one."""
    found = _SUB_ANSWER.search(text)
    return found[2].strip() or None if found and f"Q{found[1]}" == key else None


@dataclasses.dataclass(frozen=True)
class _Searching:
    """How a trajectory searches."""

    language: str
    collections: Sequence[str]
    attempts: int
    passages: int
    route: Route
    style: str
    observation_tokens: int

    def request(self, query: str, attempt: int) -> Retrieve:
        return Retrieve((query,), self.route(attempt, self.language, self.collections), self.passages)

    def shown(self, found: Found | RetrievalFailure) -> Observe:
        return Observe(information(found, self.style, self.observation_tokens))


@dataclasses.dataclass
class _Account:
    """What came of a trajectory so far."""

    plan: Plan | str = NO_PLAN
    sub_answers: dict[str, str] = dataclasses.field(default_factory=dict)
    supports: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    unresolved: str | None = None
    invalid: int = 0

    def outcome(self, answer: str | None = None) -> Outcome:
        plan = self.plan if isinstance(self.plan, Plan) else None
        return Outcome(
            answer=answer,
            invalid_actions=self.invalid,
            counts={"sub_questions": len(plan.questions) if plan else 0},
            extra={
                "plan": json.loads(plan.as_json()) if plan else None,
                "plan_fault": None if plan else self.plan,
                "unresolved": self.unresolved,
                "sub_answers": self.sub_answers,
                "supports": self.supports,
            },
        )


def _resolve(key: str, account: _Account, searching: _Searching) -> Generator[Any, Any, bool]:
    """Lets the teacher search until it answers a sub-question; False if it gives up or has no attempt left."""
    found: list[Hit] = []
    for attempt in range(1, searching.attempts + 1):
        text = yield Generate(stop=(closing(SEARCH), closing(SUB_ANSWER)))
        if (value := read_sub_answer(key, text)) is not None:
            return _note(key, value, found, account)
        match parse_action(text):
            case SearchAction(query):
                answer = yield searching.request(query, attempt)
                found += _hits(answer)
                yield searching.shown(answer)
            case _:
                account.invalid += 1
                yield Observe(RETHINK)
    value = read_sub_answer(key, (yield Generate(stop=(closing(SUB_ANSWER),))))  # one last word, no search
    return value is not None and _note(key, value, found, account)


def _note(key: str, value: str, found: Sequence[Hit], account: _Account) -> bool:
    if value.casefold() == UNKNOWN:
        return False
    holding = (hit.id for hit in found if holds_answer([f"{hit.title} {hit.text}"], [value]))
    account.sub_answers[key], account.supports[key] = value, list(dict.fromkeys(holding))
    return True


def _hits(answer: Found | RetrievalFailure) -> list[Hit]:
    if isinstance(answer, RetrievalFailure):
        return []
    return [hit for languages in answer for hits in languages for hit in hits if isinstance(hit, Hit)]
