"""GlobalRAG's rollout: a plan of sub-questions, then a sub-plan for each, then the answer; and how it is read.

Only the policy's own text is read. Tags are exact, as stop strings are; text between tag pairs has no meaning.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import (
    RETHINK,
    TRY_AGAIN,
    ContextFull,
    Observe,
    Outcome,
    Program,
    Retrieve,
    SearchTurns,
    atlas,
    user_message,
)
from lcrag.episodes.searches import Route, information, native_only
from lcrag.episodes.tags import TAG, answer_in, boxes_in
from lcrag.errors import lookup
from lcrag.methods.globalrag.plans import FAULTS, BadPlan, QuestionPlan, parse_plan
from lcrag.rewards.text import is_visible

# Of the structure and length of the paper's prompt (appendix A, figure 7), in our words and with an example of our own.
_FULL = """\
Answer the question at the end in three steps. Before every <plan>, <search>, <subAnswer> and <answer>, reason between \
<think> and </think>; write no reasoning anywhere else.

Step 1: Split the question into one or more sub-questions, and write them between <plan> and </plan>.
 - A sub-question comes with a placeholder (#1, #2, and so on) that stands for its answer.
 - Keep every sub-question short and exact, so that one search can answer it.
 - Where a sub-question needs the answer of an earlier one, write the placeholder of that answer in it.
 - The plan is one JSON object of this form:
{
    "Q1": ["the first sub-question", "#1"],
    "Q2": ["the second sub-question, about #1", "#2"],
    ...
}

Step 2: Resolve the sub-questions one after the other, each in a block of its own between <subPlan> and </subPlan>.
In such a block:
 - Take the next sub-question of the plan, with known answers in place of their placeholders.
 - Call the search engine by <search> query </search>. What it finds is shown between <information> and \
</information>. Search again if that does not tell the answer.
 - End the block with the answer, as <subAnswer> #1 = value </subAnswer> with the placeholder of that sub-question.

Step 3: Write the answer to the question between <answer> and </answer>, as short as can be and without an explanation.


## An example
Input:
What is the capital of the country in which the author of Things Fall Apart was born?

Output:
<think> The question names a book and asks for a capital. Between the two are an author and a country, so I split it \
into three sub-questions. First I find who wrote Things Fall Apart. Then I look up the country in which that author \
was born. At last I need the capital of that country. </think>
<plan>
{ "Q1": ["Who wrote Things Fall Apart?", "#1"], "Q2": ["In which country was #1 born?", "#2"], \
"Q3": ["What is the capital of #2?", "#3"] }
</plan>

<subPlan>
    <think> I begin with the author of Things Fall Apart. </think>
    <search> author of Things Fall Apart </search>
    <information> Things Fall Apart is the first novel by Chinua Achebe. It was published in 1958. </information>
    <think> The passage says that Chinua Achebe wrote the novel. </think>
    <subAnswer> #1 = Chinua Achebe </subAnswer>
</subPlan>

<subPlan>
    <think> Now I look for the country in which Chinua Achebe was born. </think>
    <search> In which country was Chinua Achebe born </search>
    <information> Chinua Achebe was born in 1930 in the town of Ogidi in the south-east of Nigeria. </information>
    <think> Ogidi is in Nigeria, so that is the country of his birth. </think>
    <subAnswer> #2 = Nigeria </subAnswer>
</subPlan>

<subPlan>
    <think> What is left is the capital of Nigeria. </think>
    <search> capital of Nigeria </search>
    <information> Abuja has been the capital of Nigeria since 1991, when it replaced Lagos. </information>
    <think> Abuja is the capital today; Lagos was the capital before. </think>
    <subAnswer> #3 = Abuja </subAnswer>
</subPlan>

<think> All sub-questions are resolved. The author was born in Nigeria, whose capital is Abuja. </think>
<answer> Abuja </answer>


## Now it is your turn
Question: """
_SHORT = (
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


# Of passages. "full" is one user message; "short" a system message and the question; the atlas's model gets none.
_STYLES = {"full": "rag_r1", "short": "rag_r1", "atlas": "atlas"}


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
    """
    style = lookup(_STYLES, wording, "wording of GlobalRAG")
    turns = SearchTurns(budget, invalid_limit, correction=RETHINK if wording == "atlas" else TRY_AGAIN)
    shown: list[int] = []  # numbers of the turns that ended in a valid search
    with suppress(ContextFull):
        if wording == "atlas":
            yield Observe(atlas(question))
        elif wording == "short":
            yield Observe(user_message(question), system=_SHORT.replace("{budget}", str(budget)))
        else:
            yield Observe(_FULL + user_message(question))
        while search := (yield from turns.next_action()):
            shown.append(len(turns.texts) - 1)
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            yield Observe(information(found, style, observation_tokens))
    extra, counts = read_episode(turns.texts, shown, question.text)
    searched_last = boxes_in(turns.texts[-1:], "search").contents if turns.in_final_turn else ()
    return Outcome(
        answer=answer_in(turns.texts[-1]) if turns.texts else None,
        invalid_actions=turns.invalid,
        counts={
            "valid_searches": turns.searches,
            "searches_beyond_budget": len(searched_last),
            "forged_information": boxes_in(turns.texts, "information").tags,
            **counts,
        },
        extra={**extra, "valid_searches": turns.searches},
    )


# Why an episode has no plan; the first that applies counts.
PLAN_FAULTS: tuple[str, ...] = ("missing", "malformed", "several", "late", *FAULTS)

_SUB_ANSWER = re.compile(r"#([0-9]+)\s*=\s*(\S.*)", re.DOTALL)


def read_episode(
    texts: Sequence[str], shown: Collection[int], question: str = ""
) -> tuple[dict[str, Any], dict[str, int]]:
    """Reads the plan, the sub-answers and the format of an episode; returns the outcome's `extra`, and counts.

    Args:
      texts: The policy's text of each turn.
      shown: Numbers of the turns after which results were shown.
      question: What the plan is for; see `plan_of`.
    """
    plan: QuestionPlan | None = None
    fault: str | None = None
    plans = boxes_in(texts, "plan")
    if not plans.tags:
        fault = "missing"
    elif plans.stray:
        fault = "malformed"
    elif len(plans.contents) > 1:
        fault = "several"
    elif shown and boxes_in(texts[min(shown) + 1 :], "plan").tags:
        fault = "late"
    else:
        try:
            plan = parse_plan(plans.contents[0], question)
        except BadPlan as error:
            fault = error.fault
    questions = plan.questions if plan else {}

    # Sub-answers are `#n = value`; the last one to a question of the plan counts.
    boxes = boxes_in(texts, "subAnswer")
    written = [match for match in map(_SUB_ANSWER.fullmatch, boxes.contents) if match]
    known = [(f"Q{match[1]}", match[2]) for match in written if f"Q{match[1]}" in questions]
    sub_answers = dict(known)

    marks = tag_marks(texts, shown)
    # Section 3.2.4, as in the authors' code: the parts are there, whatever else is written.
    sub_plans = re.findall(r"\(([^)]*)\)", marks)
    planned, concluded = "tp" in marks, "tA" in marks
    well_formed = planned and concluded and bool(sub_plans) and all({*"tsia"} <= {*sub_plan} for sub_plan in sub_plans)
    unpaired = re.sub(r"\(([^()]*)\)", r"\1", marks)
    extra = {
        "plan": plan.as_object() if plan else None,
        "plan_text": plans.contents[0] if plans.tags == 2 and not plans.stray else None,
        "plan_fault": fault,
        "sub_answers": sub_answers,
        "well_formed": well_formed,
    }
    counts = {
        "plan": int(fault is None),
        **{f"plan_{name}": int(name == fault) for name in PLAN_FAULTS},
        "sub_questions": len(questions),
        "sub_answers": len(sub_answers),
        "missing_sub_answers": len(questions) - len(sub_answers),
        "unknown_sub_answers": len(written) - len(known),
        "repeated_sub_answers": len(known) - len(sub_answers),
        "malformed_sub_answers": boxes.stray + len(boxes.contents) - len(written),
        "malformed_tags": sum(map(unpaired.count, "x()")),
        "well_formed": int(well_formed),
    }
    return extra, counts


_BOXES = {"think": "t", "plan": "p", "search": "s", "subAnswer": "a", "answer": "A"}


def tag_marks(texts: Sequence[str], shown: Collection[int]) -> str:
    """Returns all tag pairs in order, one character each, in which the parts of the format are found.

    t(hink), p(lan), s(earch), a (sub-answer), A(nswer), brackets for the tags of sub-plans, i for information shown by
    the environment, and x for anything malformed: a stray tag, an empty pair, a tag of another method, or information
    that the policy wrote.
    """
    marks = []
    for number, text in enumerate(texts):
        tags = list(TAG.finditer(text))
        while tags:
            tag = tags.pop(0)
            if tag[2] == "subPlan":
                marks.append(")" if tag[1] else "(")
            elif tag[2] in _BOXES and tags and tags[0][0] == f"</{tag[2]}>" and not tag[1]:
                content = text[tag.end() : tags.pop(0).start()]
                marks.append(_BOXES[tag[2]] if is_visible(content) else "x")
            else:  # also a pair that encloses another tag
                marks.append("x")
        marks += ["i"] * (number in shown)
    return "".join(marks)
