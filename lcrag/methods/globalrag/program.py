"""GlobalRAG's rollout: a plan of sub-questions, then a sub-plan for each, then the answer."""

import dataclasses
from collections.abc import Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import atlas, user_message
from lcrag.episodes.requests import ContextFull, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.search_loop import SearchTurns
from lcrag.episodes.tags import INFORMATION, SEARCH, answer_in, boxes_in
from lcrag.errors import lookup
from lcrag.methods.globalrag.planned_text import PlannedText
from lcrag.methods.globalrag.plans import QuestionPlan

_INSTRUCTIONS = (
    "Answer the given question by planning first. Think between <think> and </think> about the sub-questions it "
    "consists of, then write the plan between <plan> and </plan> as one JSON object: a key Q1, Q2, ... for each "
    "sub-question, its value a list of the sub-question and the placeholder of its answer, #1, #2, ... A later "
    'sub-question names an earlier answer by its placeholder: <plan> {"Q1": ["Who directed the film Jaws?", "#1"], '
    '"Q2": ["Where was #1 born?", "#2"]} </plan>. Then resolve the sub-questions in turn, each between <subPlan> and '
    "</subPlan>: think between <think> and </think>, call a search engine by <search> query </search>, which returns "
    "the top results between <information> and </information>, think about them, and give the sub-answer as "
    "<subAnswer> #1 = value </subAnswer>. Once all are resolved, think again between <think> and </think>, and give "
    "the final answer between <answer> and </answer>, without detailed illustrations. You can search {budget} times."
)


@dataclasses.dataclass(frozen=True)
class _Wording:
    instructs: bool  # whether there is a system message with instructions
    style: str  # of passages


_WORDINGS = {"full": _Wording(True, "rag_r1"), "atlas": _Wording(False, "atlas")}


@gin.configurable(denylist=["question", "collections"])
def globalrag(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 4,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Runs GlobalRAG's planning episode (section 3.2; the case studies of appendix M show the format).

    The outcome's `extra` holds `plan` as an object, None if it is invalid; `plan_text`, the text between the plan's
    tags, None unless there is exactly one pair; `plan_fault`, one of `PLAN_FAULTS` or None; `sub_answers` by key;
    `well_formed`; `valid_searches`.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      budget: Valid searches allowed; then the policy has one last turn without a search.
      passages: Passages of each searched language.
      invalid_limit: Invalid actions allowed; they do not count as searches.
      route: Which collections search number b goes to.
      wording: "full" for models that follow instructions, "atlas" for the built-in tiny one.
      observation_tokens: Maximum tokens shown per search.

    Raises:
      UserError: the wording is unknown.
    """
    words, turns = lookup(_WORDINGS, wording, "wording of GlobalRAG"), SearchTurns(budget, invalid_limit)
    shown: list[int] = []  # numbers of the turns that ended in a valid search
    with suppress(ContextFull):
        yield Observe(*_opening(question, budget, words))
        while search := (yield from turns.next_action()):
            shown.append(len(turns.texts) - 1)
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            yield Observe(information(found, words.style, observation_tokens))
    return _outcome(turns, shown, question.text)


def _outcome(turns: SearchTurns, shown: Sequence[int], question: str) -> Outcome:
    read = PlannedText(turns.texts, shown, question)
    plan = read.plan if isinstance(read.plan, QuestionPlan) else None
    searched_last = boxes_in(turns.texts[-1:], SEARCH).contents if turns.had_last_word else ()
    return Outcome(
        answer=answer_in(turns.texts[-1]) if turns.texts else None,
        invalid_actions=turns.invalid,
        counts={
            "valid_searches": turns.searches,
            "searches_beyond_budget": len(searched_last),
            "forged_information": boxes_in(turns.texts, INFORMATION).tags,
            **read.counts,
        },
        extra={
            "plan": plan.as_object() if plan else None,
            "plan_text": read.plan_text,
            "plan_fault": None if plan else read.plan,
            "sub_answers": read.resolved,
            "well_formed": read.well_formed,
            "valid_searches": turns.searches,
        },
    )


def _opening(question: Question, budget: int, words: _Wording) -> tuple[str, str | None]:
    """The user's message and the system's."""
    if not words.instructs:
        return atlas(question), None
    return user_message(question), _INSTRUCTIONS.replace("{budget}", str(budget))
