"""Golden plans by a teacher, text by text, and what removes them; the atlas's oracle and teacher."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_scripts import drive
from support import tiny_tokenizer

from lcrag.atlas import Chain, build_world
from lcrag.atlas.facts import query_text, subject_of
from lcrag.atlas.world import Entry, atlas_comparisons, atlas_conjunctions
from lcrag.curation.playing import KEPT, play
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Generate, Observe
from lcrag.episodes.chat import ContextTokenizer
from lcrag.methods.globalrag.golden import (
    BAD_PLANS,
    FILTERS,
    PlanOracle,
    PlanTeacher,
    golden_trajectory,
    golden_verdict,
    graph_of,
    read_plan,
    read_sub_answer,
    without_held_out,
)
from lcrag.methods.globalrag.plans import QuestionPlan, golden_graph, golden_plans, plan_of, with_own_plan
from lcrag.methods.globalrag.program import globalrag
from lcrag.retrieval import Hit

QUESTION = Question(
    id="1", dataset="d", language="en", text="Where was the director of Jaws born?", answers=("Cincinnati", "Ohio")
)
PLAN = '<plan> {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]} </plan>'
FOUND = "<search> Jaws </search>"
FIRST = "<subAnswer> #1 = Steven Spielberg </subAnswer>"
SECOND = "<subAnswer> #2 = Cincinnati </subAnswer>"
TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())


def hit(name, text):
    return Hit(id=name, title=name, text=text, score=1.0, language="en")


def test_the_dialogue():
    texts = (
        f"<think> two hops </think> {PLAN}",
        FOUND,
        FIRST,
        "I do not know yet",
        FOUND,
        SECOND,
        "<answer> Cincinnati </answer>",
    )
    program = golden_trajectory(QUESTION, ("en",), attempts=2)
    outcome, requests = drive(program, texts, found=[[[hit("Jaws", "by Steven Spielberg"), hit("Born", "Cincinnati")]]])
    shown = [str(request.text) for request in requests if isinstance(request, Observe)]
    assert shown[0] == f"Question: {QUESTION.text}\nWrite the plan.\n"
    assert shown[1] == "\nQ1: Who directed Jaws?\nSearch, or write <subAnswer> #1 = value </subAnswer>.\n"
    assert shown[3].startswith("\nQ2: Where was Steven Spielberg born?\n"), "answers stand in their places"
    assert shown[4] == "\nMy action is not correct. Let me rethink.\n"
    assert shown[6].startswith("\n#1 = Steven Spielberg\n#2 = Cincinnati\nWrite the answer")
    stops = [request.stop for request in requests if isinstance(request, Generate)]
    search = ("</search>", "</subAnswer>")
    last = ("</subAnswer>",)  # two attempts are spent: a last word
    assert stops == [("</plan>",), *[search] * 4, last, ("</answer>",)]
    assert (outcome.answer, outcome.invalid_actions) == ("Cincinnati", 1)
    assert outcome.extra["supports"] == {"Q1": ["Jaws"], "Q2": ["Born"]}


def played(*written, attempts=2, context=2000):
    """The record of a trajectory whose teacher writes the given texts, the last one again and again."""
    texts = list(written)

    def write(question, turns, request):
        return texts.pop(0) if len(texts) > 1 else texts[0]

    def search(queries, languages, passages):
        return [[hit("Jaws", "by Steven Spielberg of Cincinnati")] for _ in queries]

    program = golden_trajectory(QUESTION, ("en",), attempts=attempts, wording="atlas")
    [record] = play([(QUESTION, program)], write, search, TOKENIZER, context=context)
    return record


RIGHT = (PLAN, FOUND, FIRST, FOUND, SECOND, "<answer> Ohio </answer>")


def test_a_golden_graph():
    record = played(*RIGHT)
    assert golden_verdict(record, correct=True) == KEPT
    graph = graph_of(record)
    first = {"query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": ["Jaws"]}
    answers = ["Cincinnati", "Ohio"]
    second = {"query": "Where was #1 born?", "answer": answers, "previous": ["Q1"], "supports": ["Jaws"]}
    assert graph == {"Q1": first, "Q2": second}
    assert golden_graph(graph).answers["Q2"] == ("Cincinnati", "Ohio")


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        (("no plan",), BAD_PLANS["no_plan"]),
        (("<plan> {'Q1'} </plan>",), BAD_PLANS["invalid_json"]),
        (('<plan> {"Q1": ["a #2", "#1"], "Q2": ["b #1", "#2"]} </plan>',), "a bad plan: cyclic"),
        (('<plan> {"Q1": ["a #2", "#1"], "Q2": ["b", "#2"]} </plan>',), "a bad plan: inconsistent order"),
        ((PLAN, FOUND), "an unresolved sub-question"),
        ((PLAN, "hm"), "an unresolved sub-question"),
        ((PLAN, SECOND), "an unresolved sub-question"),  # of another question
        ((PLAN, "<subAnswer> #1 = Unknown </subAnswer>"), "an unresolved sub-question"),
        ((PLAN, FIRST, SECOND, "I am sure"), "no answer"),
        (RIGHT, "a wrong answer"),
    ],
)
def test_what_is_removed(written, verdict):
    record = played(*written)
    assert golden_verdict(record, correct=False) == verdict
    assert verdict in FILTERS
    asked = "I am sure" in written or written == RIGHT  # for an answer, which only resolved sub-questions have
    assert any(turn.text.endswith(f"{QUESTION.text}\n") for turn in record.turns) == asked


@given(st.text(max_size=60))
def test_any_text_is_read(text):
    assert isinstance(read_plan(f"<plan>{text}</plan>"), QuestionPlan | str)
    value = read_sub_answer("Q1", f"<subAnswer> #1 = {text} </subAnswer>")
    assert value is None or value == text.strip()


WORLD = build_world(seed=0)
ONE_FACT = WORLD.question(Chain((next(fact for fact in WORLD.facts if fact.id == "currency_code/FR"),)), "en")
TWO_FACTS, THREE_FACTS = (
    WORLD.question(next(chain for chain in WORLD.chains if chain.id == id), "en")
    for id in ("country_of_language+currency/fi", "country_of_language+currency+code_of_currency/fi")
)
COMPARED = atlas_comparisons("train", ("en",))[0]
CONJOINED = atlas_conjunctions("train", ("en",))[0]
ALL = {"one": ONE_FACT, "two": TWO_FACTS, "three": THREE_FACTS, "comparison": COMPARED, "conjunction": CONJOINED}
every_question = pytest.mark.parametrize("question", ALL.values(), ids=ALL)


def query_of(fact):
    return query_text("en", fact.relation, WORLD.name(subject_of(fact), "en").text)


def knowing(lacking=()):
    """A search that finds a right passage about the fact whose query it is."""
    by_query = {
        query_of(fact): WORLD.written_passage("x", "en", [(fact, Entry(fact.value, None))])
        for fact in WORLD.facts
        if fact.id not in lacking
    }

    def search(queries, languages, passages):
        found = [by_query.get(query) for query in queries]
        return [[Hit(id="x", title=p.title, text=p.text, score=1.0, language="en")] if p else [] for p in found]

    return search


def played_by(player, question, search, program):
    def write(question, turns, request):
        return player.next_text(question, [(turn.by, turn.text) for turn in turns])

    [record] = play([(question, program(question, ("en",), wording="atlas", passages=1))], write, search, TOKENIZER,
                    context=4000)  # fmt: skip
    return record


def planned(question, search, **options):
    return played_by(PlanOracle(**options), question, search, globalrag)


@every_question
def test_the_oracle_plays_the_program_to_the_letter(question):
    record = planned(question, knowing())
    extra, [golden] = record.outcome.extra, golden_plans(with_own_plan(question).extra)
    assert record.outcome.answer in question.answers
    assert extra["well_formed"]
    assert golden.plan.questions == {key: text for key, (text, _) in extra["plan"].items()}
    assert all(extra["sub_answers"][key] in answers for key, answers in golden.answers.items())
    assert record.turns[0].text.endswith("</search>")
    counted = {name for name, count in record.outcome.counts.items() if count}
    assert counted == {"plan", "valid_searches", "sub_questions", "sub_answers", "well_formed"}


def test_the_oracle_says_where_a_collection_lacks_a_fact_or_its_budget_ends():
    record = planned(TWO_FACTS, knowing(lacking=("currency/FI",)))
    assert record.outcome.answer == record.outcome.extra["sub_answers"]["Q2"] == "unknown"
    lost = planned(TWO_FACTS, knowing(lacking=("country_of_language/fi",)))
    assert lost.outcome.extra["well_formed"]
    assert lost.outcome.extra["sub_answers"] == {"Q1": "unknown", "Q2": "unknown"}
    short = planned(TWO_FACTS, knowing(), budget=1)
    assert short.outcome.counts["valid_searches"] == short.outcome.counts["missing_sub_answers"] == 1


@pytest.mark.parametrize("question", [TWO_FACTS, THREE_FACTS])
def test_a_careless_plan_names_no_earlier_answer_and_is_executed_as_written(question):
    record = planned(question, knowing(), careless=1.0)
    plan = record.outcome.extra["plan"]
    assert plan["Q2"] == ["What is the currency of the country Finnish?", "#2"]
    searches = [turn.text.partition("<search> ")[2].partition("</search>")[0] for turn in record.turns]
    labels = ("main country", "currency", "code")[: len(plan)]
    assert list(filter(None, searches)) == [f"Finnish {label}" for label in labels]
    assert record.outcome.answer == record.outcome.extra["sub_answers"]["Q2"] == "unknown"


def test_limits_of_attempts_and_context_and_a_cyclic_plan():
    assert played(PLAN, FOUND, attempts=15, context=9000).counts["searches"] == 15
    assert golden_verdict(played(PLAN, FOUND, attempts=15, context=260), correct=False) == "the context was full"
    careless = played_by(PlanTeacher(careless=1.0), TWO_FACTS, knowing(), golden_trajectory)
    assert golden_verdict(careless, correct=True) == "a bad plan: cyclic"


@pytest.mark.parametrize(("form", "count"), zip(ALL, (1, 2, 3, 2, 3), strict=True))
def test_the_teacher_s_trajectory_is_kept_and_a_lacking_fact_makes_it_give_up(form, count):
    question = ALL[form]
    record = played_by(PlanTeacher(), question, knowing(), golden_trajectory)
    assert golden_verdict(record, correct=record.outcome.answer in question.answers) == KEPT
    golden = golden_graph(graph_of(record))
    assert golden.plan == plan_of(with_own_plan(question).extra["plan"])
    assert len(golden.plan.questions) == record.counts["searches"] == count
    assert len(golden.plan.edges) == {"two": 1, "three": 2}.get(form, 0)
    lost = played_by(PlanTeacher(budget=2), question, lambda queries, *_: [[]] * len(queries), golden_trajectory)
    assert (lost.outcome.extra["unresolved"], lost.counts["searches"]) == ("Q1", 2)


@pytest.mark.parametrize("text", ["Wer war es?", "WER WAR ES", "Wer\u00a0war es\u200f?", "Wer war e\u00ads?"])
def test_a_held_out_question_is_the_same_to_a_reader(text):
    asked, other = (dataclasses.replace(QUESTION, text=written) for written in (text, "Wer ist es?"))
    assert without_held_out([asked, other], [dataclasses.replace(QUESTION, text="Wer war es?")]) == [other]
