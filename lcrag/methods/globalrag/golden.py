"""Golden plans by a teacher: the dialogue in which it plans once, resolves each sub-question and answers; the filters.

GlobalRAG, section 3.1 and appendix D. The environment hands out the sub-questions in topological order, with known
answers in place of their placeholders, and searches as in the policy's own episodes. An invalid, cyclic or disordered
plan, an unresolved sub-question, and a wrong final answer remove a trajectory (appendix D.3). A question that an
evaluation asks in the same words is removed too (appendix E.1).
"""

import dataclasses
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gin

from lcrag.atlas.facts import query_text
from lcrag.atlas.oracle import NeededFact, SearchState, read_texts
from lcrag.atlas.world import World, atlas_world
from lcrag.curation import playing
from lcrag.curation.players import AGAIN, MISSING, READ, Evidence, Hop, evidence_in, thinking
from lcrag.data.questions import Question, in_share, language_of
from lcrag.episodes import (
    Chat,
    Complete,
    ContextFull,
    EpisodeRecord,
    Generate,
    Observe,
    Outcome,
    Program,
    Retrieve,
    SearchAction,
    Turn,
    answer_in,
    information,
    neutralise,
    parse_action,
)
from lcrag.episodes.programs import RETHINK, UNKNOWN, answer_language, atlas, hits_of
from lcrag.episodes.searches import Route, native_only
from lcrag.errors import UserError, lookup, typed
from lcrag.evaluation.tables import Table, row_of
from lcrag.methods.globalrag.plans import (
    DISORDERED,
    FAULTS,
    BadPlan,
    GoldenGraph,
    QuestionPlan,
    golden_plans,
    graph_with_answers,
    parse_plan,
    placeholder,
    plan_of,
    substituted,
    united,
    with_own_plan,
)
from lcrag.retrieval.passages import Hit
from lcrag.rewards import normalise, squad_exact_match
from lcrag.rewards.matching import holds_answer
from lcrag.rewards.text import folded

GIVEN_UP = "unknown"  # sub-answer of a teacher that gives up
NO_PLAN = "no_plan"
UNRESOLVED = "an unresolved sub-question"
BAD_PLANS = {fault: f"a bad plan: {fault.replace('_', ' ')}" for fault in (NO_PLAN, *FAULTS, DISORDERED)}
# In the order of the checks.
FILTERS = (playing.CONTEXT_FULL, *BAD_PLANS.values(), UNRESOLVED, playing.NO_ANSWER, playing.WRONG)

_STYLES = {"full": "rag_r1", "atlas": "atlas"}  # of passages; the atlas's teacher needs no instructions

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
    passages that hold the sub-answer. `attempts` is the maximum of searches, invalid actions included, for one
    sub-question; the route is of these.
    """
    style, instructed = lookup(_STYLES, wording, "wording of golden plans"), wording == "full"
    plan: QuestionPlan | str = NO_PLAN
    sub_answers: dict[str, str] = {}
    supports: dict[str, list[str]] = {}
    unresolved: str | None = None
    answer: str | None = None
    invalid = 0
    with suppress(ContextFull):
        if instructed:
            wanted = answer_language(question)
            note = "" if wanted == "en" else f" The answers must be in {language_of(wanted).name}."
            task = f"Question: {neutralise(question.text)}{note}\nWrite the plan.\n"
            yield Observe(task, system=_INSTRUCTIONS)
        else:
            yield Observe(atlas(question))
        plan = read_plan((yield Generate(stop=("</plan>",))), question.text)
        steps = [(key, plan.questions[key]) for key in plan.order] if isinstance(plan, QuestionPlan) else []
        for key, sub_question in steps:
            text = neutralise(substituted(sub_question, sub_answers))
            hint = f"Search, or write <subAnswer> {placeholder(key)} = value </subAnswer>.\n" if instructed else ""
            yield Observe(f"\n{key}: {text}\n{hint}")
            hits: list[Hit] = []
            for attempt in range(1, attempts + 1):
                written = yield Generate(stop=("</search>", "</subAnswer>"))
                if (value := read_sub_answer(key, written)) is not None:
                    break
                if isinstance(action := parse_action(written), SearchAction):
                    languages = route(attempt, question.language, collections)
                    found = yield Retrieve((action.query,), languages, passages)
                    hits += [hit for hit in hits_of(found) if isinstance(hit, Hit)]
                    yield Observe(information(found, style, observation_tokens))
                else:
                    invalid += 1
                    yield Observe(RETHINK)
            else:  # one last turn, without a search
                value = read_sub_answer(key, (yield Generate(stop=("</subAnswer>",))))
            if value is None or value.casefold() == GIVEN_UP:
                unresolved = key
                break
            holding = (hit.id for hit in hits if holds_answer([f"{hit.title} {hit.text}"], [value]))
            sub_answers[key], supports[key] = value, list(dict.fromkeys(holding))
        if steps and unresolved is None:
            known = "".join(f"{placeholder(key)} = {neutralise(value)}\n" for key, value in sub_answers.items())
            hint = "Write the answer to the question between <answer> and </answer>: " if instructed else ""
            yield Observe(f"\n{known}{hint}{neutralise(question.text)}\n")
            answer = answer_in((yield Generate(stop=("</answer>",))))
    valid = plan if isinstance(plan, QuestionPlan) else None
    return Outcome(
        answer=answer,
        invalid_actions=invalid,
        counts={"sub_questions": len(valid.questions) if valid else 0},
        extra={
            "plan": valid.as_object() if valid else None,
            "plan_fault": None if valid else plan,
            "unresolved": unresolved,
            "sub_answers": sub_answers,
            "supports": supports,
        },
    )


def read_plan(text: str, question: str = "") -> QuestionPlan | str:
    """Returns the last plan in a teacher's text, or its fault: `NO_PLAN`, one of `FAULTS`, or `DISORDERED`."""
    written = re.findall(r"<plan>((?:(?!</?plan>).)*)</plan>", text, re.DOTALL)
    if not written:
        return NO_PLAN
    try:
        plan = parse_plan(written[-1], question)
    except BadPlan as error:
        return error.fault
    return DISORDERED if plan.forward_reference else plan


_SUB_ANSWER = re.compile(r"<subAnswer>\s*#([0-9]+)\s*=((?:(?!</?subAnswer>).)*)</subAnswer>\s*\Z", re.DOTALL)


def read_sub_answer(key: str, text: str) -> str | None:
    """Returns the value of the sub-answer to `key` that ends a text, or None."""
    match = _SUB_ANSWER.search(text)
    return match[2].strip() or None if match and f"Q{match[1]}" == key else None


def without_held_out(questions: Iterable[Question], held_out: Iterable[Question]) -> list[Question]:
    """Returns the questions that no held-out one asks in the same words, ignoring case and punctuation."""
    asked = {normalise(question.text, "unicode") for question in held_out}
    return [question for question in questions if normalise(question.text, "unicode") not in asked]


def golden_verdict(record: EpisodeRecord, correct: bool) -> str:
    """Returns `KEPT`, or the first of `FILTERS` that removes an episode of `golden_trajectory`."""
    extra = record.outcome.extra
    if not record.finished:
        return playing.CONTEXT_FULL
    if extra["plan_fault"] is not None:
        return BAD_PLANS[extra["plan_fault"]]
    if extra["unresolved"] is not None:
        return UNRESOLVED
    if record.outcome.answer is None:
        return playing.NO_ANSWER
    return playing.KEPT if correct else playing.WRONG


def graph_of(record: EpisodeRecord) -> GoldenGraph:
    """Returns the golden graph of a kept episode.

    Queries keep their placeholders. Where a sub-answer matches the golden answer, its aliases are answers too.
    """
    extra, golds = record.outcome.extra, record.question.answers
    plan = plan_of(extra["plan"])
    sub_answers = [extra["sub_answers"][key] for key in plan.questions]
    texts, wanted = [folded(answer) for answer in sub_answers], [folded(gold) for gold in golds]
    final = squad_exact_match(texts, [wanted] * len(texts)) == 1
    answers = [
        tuple(dict.fromkeys((answer, *(golds if is_final else ()))))
        for answer, is_final in zip(sub_answers, final.tolist(), strict=True)
    ]
    return graph_with_answers(plan, answers, (extra["supports"][key] for key in plan.questions))


# --- The player ---

PLANS = ("The question has parts, which I resolve one by one.", "I plan first.", "Let me divide the question.")
SEARCHES = ("I search for this part.", "I need a passage about this.", "Let me look this up.")
DONE = ("All parts are resolved.", "Now I know the answer.", "I have what the question asks.")


@gin.register
class GoldenPlanner:
    """Plays GlobalRAG's program from the golden plans of questions, without a model.

    It writes the golden plan, searches for each sub-question with the golden answers of earlier ones in it, once more
    for its words without a passage that holds its answer, and gives the sub-answer that a shown passage holds.
    Otherwise the sub-answer is "unknown", and so is the answer.
    """

    def __init__(self, questions: Sequence[Question]):
        for question in questions:
            if not golden_plans(question.extra):
                raise UserError(
                    f"question {question.key} has no golden plan to demonstrate: give questions with plans, such as"
                    " those of data/musique_golden_plans.gin or `lcrag curate golden_plans`"
                )

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        """Returns the plan and the first search, or a sub-answer and what follows it."""
        playing.check_dialogue(question, request)
        golden, *_ = golden_plans(question.extra)
        observations = [turn.text for turn in turns[1:] if turn.by == "environment"]
        written = "".join(turn.text for turn in turns if turn.by == "policy")
        number = f"{len(observations)}"

        def thought(texts: Sequence[str], evidence: Evidence | None = None) -> str:
            return thinking(texts, (question.key, number), evidence)

        text = ""
        if not written:
            text = f"{thought(PLANS)}<plan> {golden.plan.as_json()} </plan>\n"
        known = {key: golden.answers[key][0] for key in golden.plan.questions}
        for key in golden.plan.order:
            if f"<subAnswer> {placeholder(key)} = " in written:
                continue
            query = neutralise(substituted(golden.plan.questions[key], known)).replace(" >> ", " ")
            evidence = evidence_in(observations, Hop(queries=(query,), golds=golden.answers[key]))
            opened = written.count("<subPlan>") > written.count("</subPlan>")
            tries = [text for text in (query, neutralise(question.text)) if f"<search> {text} </search>" not in written]
            if not opened or (evidence is None and tries and "</search>" in request.stop):
                if "</search>" not in request.stop:
                    break  # the last turn: nothing can be searched for any more
                text += thought(AGAIN) if opened else f"<subPlan>\n{thought(SEARCHES)}"
                return f"{text}<search> {(tries or [query])[0]} </search>"
            value = known[key] if evidence else GIVEN_UP
            sub_answer = f"<subAnswer> {placeholder(key)} = {value} </subAnswer>\n</subPlan>\n"
            text += thought(READ if evidence else MISSING, evidence) + sub_answer
            written += sub_answer
            if evidence is None:
                break
        else:
            return f"{text}{thought(DONE)}<answer> {playing.golden_answer(question)} </answer>"
        return f"{text}{thought(MISSING)}<answer> {playing.unknown_in(answer_language(question))} </answer>"


def golden_questions(questions: Iterable[Question], rows: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Returns the questions with at least one kept trajectory, their graphs as `golden_plans` in `extra`, in order.

    `rows` are trajectories with `key`, `verdict` and, if kept, `graph`; a question's equal plans are united.
    """
    graphs: dict[str, list[GoldenGraph]] = defaultdict(list)
    for row in rows:
        if row["verdict"] == playing.KEPT:
            graphs[row["key"]].append(row["graph"])
    return [
        dataclasses.replace(question, extra=question.extra | {"golden_plans": united(graphs[question.key])})
        for question in questions
        if question.key in graphs
    ]


def curation_report(
    asked: Sequence[Question],
    questions: Sequence[Question],
    rows: Sequence[Mapping[str, Any]],
    golden: Sequence[Question],
) -> dict[str, Any]:
    """Counts what each filter removed and what was kept: the content of `report.json`.

    `asked` are all questions, `questions` those that are not held out, `golden` those that were kept.
    """
    searches = [row["outcome"]["counts"]["searches"] for row in rows if row["verdict"] == playing.KEPT]
    verdicts = Counter(row["verdict"] for row in rows)
    graphs = [question.extra["golden_plans"] for question in golden]
    kinds: dict[str, Iterable[str | int]] = {
        "by_dataset": (question.dataset for question in golden),
        "by_graphs": map(len, graphs),
        "by_sub_questions": (len(graph) for of_question in graphs for graph in of_question),
    }
    counted = {name: {str(value): n for value, n in sorted(Counter(values).items())} for name, values in kinds.items()}
    return {
        "questions": len(asked),
        "held_out": len(asked) - len(questions),
        "trajectories": len(rows),
        "removed": {name: verdicts[name] for name in FILTERS},
        "kept": verdicts[playing.KEPT],
        "golden": {"questions": len(golden), **counted},
        "searches_of_kept": sum(searches) / len(searches) if searches else None,
    }


def curation_tables(report: Mapping[str, Any]) -> tuple[Table, Table]:
    """Returns two tables of a report: what each filter removed and left, and the questions kept with their plans."""
    left = report["trajectories"]
    lines = [
        row_of("questions", "", report["questions"]),
        row_of("asked in an evaluation too", report["held_out"], report["questions"] - report["held_out"]),
        row_of("trajectories", "", left),
    ]
    for name, removed in report["removed"].items():
        left -= removed
        if removed:
            lines.append(row_of(name, removed, left))
    golden, searches = report["golden"], report["searches_of_kept"]
    sections = [{"questions with a golden plan": golden["questions"], **golden["by_dataset"]}]
    for name, counts in (("plans of a question", "by_graphs"), ("sub-questions of a plan", "by_sub_questions")):
        sections.append({f"{name}: {size}": count for size, count in golden[counts].items()})
    return (
        Table(
            title="What each filter removed",
            header=("", "removed", "left"),
            sections=(tuple(lines),),
            note="Filters that removed nothing are left out.",
        ),
        Table(
            title="Golden plans",
            header=("", "number"),
            sections=tuple(tuple(row_of(*line) for line in section.items()) for section in sections if section),
            note="" if searches is None else f"{searches:.2f} searches in a trajectory that was kept.",
        ),
    )


# --- The atlas's rule-based policies ---
# Both read the question's kind, subjects and golden plan, the names of all entities, and what the searches have shown,
# but no facts of the world. They are therefore wrong where a collection lacks a fact or holds an outdated one.


@gin.register
@dataclasses.dataclass(frozen=True)
class PlanOracle:
    """Plays an episode of `globalrag` in its atlas wording, one text at a time."""

    budget: int = 4  # maximum searches; then it answers with what it has
    # Share of the questions whose plan it writes without references between sub-questions, and executes so: every
    # sub-question is then asked of the first subject.
    careless: float = 0.0
    seed: int = 0  # selects these questions

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `lcrag.atlas.oracle.Oracle.next_text`."""
        known = SearchState(question, read_texts(text for by, text in turns if by == "environment"))
        searches = sum("</search>" in text for by, text in turns if by == "policy")
        plan = with_own_plan(question).extra["plan"]
        careless = in_share(question.coupling, self.careless, self.seed)
        if careless:
            name = question.extra.get("entity", "")
            plan = {key: [re.sub("#[0-9]+", name, text), variable] for key, (text, variable) in plan.items()}

        # The fact of each sub-question; where the bridge entity was not found, that of an entity called "unknown".
        unknown = UNKNOWN[question.language]
        if careless:
            others = [dataclasses.replace(known.given[0], relation=relation) for relation in known.relations]
            facts = known.given if len(known.given) > 1 else others
        else:
            path = known.path({}, guess=False, asked=())
            facts = [*path, *(NeededFact(relation, "", unknown) for relation in known.relations[len(path) :])]

        def sub_plan(wanted: NeededFact) -> str:  # its beginning, up to the search
            query = query_text(question.language, wanted.relation, wanted.name)
            return f"<subPlan><think> {wanted.name}</think><search> {query}</search>"

        if not searches:
            subjects = ", ".join(wanted.name for wanted in known.given)
            written = json.dumps(plan, ensure_ascii=False)
            return f"<think> {subjects}</think><plan> {written}</plan>{sub_plan(facts[0])}"
        resolving = facts[searches - 1]
        value = known.value(resolving) or unknown
        resolved = f"<think> {known.note(resolving)}</think><subAnswer> #{searches} = {value}</subAnswer></subPlan>"
        if searches < min(len(plan), self.budget):
            return resolved + sub_plan(facts[searches])
        answer = value if careless and len(known.given) == 1 else known.answer()
        return f"{resolved}<think> {answer}</think><answer> {answer}</answer>"


@dataclasses.dataclass(frozen=True)
class PlanTeacher:
    """Plays an episode of `golden_trajectory` in its atlas wording, one text at a time."""

    budget: int = 2  # maximum searches for a sub-question; then it gives up
    careless: float = 0.0  # share of the questions whose plan it makes cyclic
    seed: int = 0  # selects these questions

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the teacher's next text; `turns` has the opening prompt."""
        # A one-hop question is its own plan.
        plan = plan_of(question.extra.get("plan", {"Q1": [question.text, "#1"]}))
        keys = list(plan.questions)
        written = [text for by, text in turns if by == "policy"]
        if not written:
            if in_share(question.coupling, self.careless, self.seed):
                first, last = keys[0], keys[-1] if len(keys) > 1 else "Q2"
                questions = {**plan.questions, first: f"{plan.questions[first]} {placeholder(last)}"}
                questions.setdefault(last, placeholder(first))  # a question over one fact has no other
                plan = QuestionPlan(questions)
            return f"<think> {question.text}</think><plan> {plan.as_json()}</plan>"
        known = SearchState(question, read_texts(text for by, text in turns if by == "environment"))
        resolved = [place for place, text in enumerate(written) if "</subAnswer>" in text]
        if len(resolved) == len(keys):
            return f"<answer> {known.answer()}</answer>"
        path = known.path({}, guess=False, asked=())
        wanted = path[min(len(resolved), len(path) - 1)]
        value = known.value(wanted)
        searches = sum("</search>" in text for text in written[resolved[-1] + 1 if resolved else 0 :])
        if value is None and searches < self.budget:
            return f"<search> {query_text(question.language, wanted.relation, wanted.name)}</search>"
        return f"<subAnswer> {placeholder(keys[len(resolved)])} = {value or GIVEN_UP}</subAnswer>"


@gin.configurable
@typed
def plan_teacher(
    tokenizer: str,
    chat: Chat,
    context: int,
    budget: int = 2,
    careless: float = 0.0,
    seed: int = 0,
    world: Callable[[], World] = atlas_world,
) -> playing.WritingTeacher:
    """Returns `PlanTeacher` as the teacher; other parameters as of `endpoint_teacher`."""
    teacher = PlanTeacher(budget=budget, careless=careless, seed=seed)
    return playing.rule_based_teacher(
        playing.oracle_writer(teacher), tokenizer, chat, context, {"world": world().fingerprint}
    )
