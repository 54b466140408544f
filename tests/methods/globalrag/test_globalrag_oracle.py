"""The oracle that plays GlobalRAG's program, and the rule-based teacher of golden plans."""

import json

import pytest
from support import tiny_tokenizer

from lcrag.atlas import Chain, build_world
from lcrag.atlas.facts import section_of, subject_of
from lcrag.atlas.holdings import Entry
from lcrag.atlas.independent_facts import comparison_questions, conjunction_questions
from lcrag.atlas.wording import query_text
from lcrag.curation.playing import play
from lcrag.episodes import Chat
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.methods.globalrag.oracle import PlanOracle, PlanTeacher, plan_of_question
from lcrag.methods.globalrag.plans import BadPlan, golden_plans, parse_plan, with_own_plan
from lcrag.methods.globalrag.program import globalrag
from lcrag.retrieval.passages import Hit

WORLD = build_world(seed=0)
ONE_FACT = WORLD.question(Chain((next(fact for fact in WORLD.facts if fact.id == "currency_code/FR"),)), "en")
TWO_FACTS, THREE_FACTS = (
    WORLD.question(next(chain for chain in WORLD.chains if chain.id == id), "en")
    for id in ("country_of_language+currency/fi", "country_of_language+currency+code_of_currency/fi")
)
COMPARED = comparison_questions(WORLD, "train", ("en",))[0]
CONJOINED = conjunction_questions(WORLD, "train", ("en",))[0]
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


def played(question, search, **options):
    oracle = PlanOracle(**options)

    def teacher(question, turns, request):
        return oracle.next_text(question, [(turn.by, turn.text) for turn in turns])

    program = globalrag(question, ("en",), wording="atlas", passages=1)
    [record] = play([(question, program)], teacher, search, ContextTokenizer(tiny_tokenizer(), Chat()), context=4000)
    return record


@every_question
def test_it_plays_the_program_to_the_letter(question):
    record = played(question, knowing())
    extra, [golden] = record.outcome.extra, golden_plans(with_own_plan(question).extra)
    assert record.outcome.answer in question.answers
    assert extra["well_formed"]
    assert golden.plan.questions == {key: text for key, (text, _) in extra["plan"].items()}
    assert all(extra["sub_answers"][key] in answers for key, answers in golden.answers.items())
    counted = {name for name, count in record.outcome.counts.items() if count}
    assert counted == {"plan", "valid_searches", "sub_questions", "sub_answers", "well_formed"}


def test_its_texts():
    record = played(TWO_FACTS, knowing())
    first, second, last = (turn.text for turn in record.turns if turn.by == "policy")
    assert first == (
        f"<think> Finnish</think><plan> {json.dumps(TWO_FACTS.extra['plan'])}</plan>"
        "<subPlan><think> Finnish</think><search> Finnish main country</search>"
    )
    assert second == (
        "<think> Finnish: main country: Finland</think><subAnswer> #1 = Finland</subAnswer></subPlan>"
        "<subPlan><think> Finland</think><search> Finland currency</search>"
    )
    assert last == (
        "<think> Finland: currency: Euro</think><subAnswer> #2 = Euro</subAnswer></subPlan>"
        "<think> Euro</think><answer> Euro</answer>"
    )


def test_where_a_collection_lacks_a_fact_it_says_so():
    record = played(TWO_FACTS, knowing(lacking=("currency/FI",)))
    assert record.outcome.answer == "unknown"
    assert record.outcome.extra["sub_answers"]["Q2"] == "unknown"
    lost = played(TWO_FACTS, knowing(lacking=("country_of_language/fi",)))
    assert lost.outcome.answer == "unknown"
    assert lost.outcome.extra["well_formed"]
    assert lost.outcome.extra["sub_answers"] == {"Q1": "unknown", "Q2": "unknown"}


@pytest.mark.parametrize("question", [TWO_FACTS, THREE_FACTS])
def test_a_careless_plan_names_no_earlier_answer_and_is_executed_as_written(question):
    record = played(question, knowing(), careless=1.0)
    plan = record.outcome.extra["plan"]
    assert plan["Q2"] == ["What is the currency of the country Finnish?", "#2"]
    searches = [turn.text.partition("<search> ")[2].partition("</search>")[0] for turn in record.turns]
    labels = ("main country", "currency", "code")[: len(plan)]
    assert list(filter(None, searches)) == [f"Finnish {label}" for label in labels]
    assert record.outcome.extra["sub_answers"]["Q2"] == "unknown"
    assert record.outcome.answer == "unknown"


def test_a_share_of_the_plans_is_careless():
    questions = WORLD.questions("train", ("en",), hops=(2, 3, 4))
    plans = [written_plan(PlanOracle(careless=0.3).next_text(each, ())) for each in questions]
    assert 0.2 < sum("#1?" not in plan for plan in plans) / len(questions) < 0.4


def test_its_budget_ends_the_plan():
    record = played(TWO_FACTS, knowing(), budget=1)
    assert record.outcome.counts["valid_searches"] == 1
    assert record.outcome.counts["missing_sub_answers"] == 1


FOUND = {query_of(fact): WORLD.passage(section_of(fact), "en") for fact in WORLD.facts if WORLD.holds(fact, "en")}


def written_plan(text):
    return text.partition("<plan>")[2].partition("</plan>")[0]


def information(query):
    found = FOUND.get(query)
    shown = f" {found.title}: {found.text}" if found else " No passages were found."
    return f"<information>\n{shown}\n</information>"


@pytest.mark.parametrize(("form", "count"), zip(ALL, (1, 2, 3, 2, 3), strict=True))
def test_it_plans_first(form, count):
    question = ALL[form]
    text = PlanTeacher().next_text(question, [("environment", question.text)])
    plan = parse_plan(written_plan(text))
    assert plan == plan_of_question(question)
    assert len(plan.questions) == count
    assert len(plan.edges) == {"two": 1, "three": 2}.get(form, 0)


@every_question
def test_it_searches_and_gives_up(question):
    teacher = PlanTeacher(budget=2)
    turns = [("environment", question.text), ("policy", "<plan> ... </plan>"), ("environment", "\nQ1: ...\n")]
    for _ in range(2):
        text = teacher.next_text(question, turns)
        assert text.startswith("<search> ")
        assert text.endswith("</search>")
        turns += [("policy", text), ("environment", "<information>\n No passages were found.\n</information>")]
    assert teacher.next_text(question, turns) == "<subAnswer> #1 = unknown</subAnswer>"


def test_it_answers_a_comparison_that_it_has_read():
    question = next(
        each for each in comparison_questions(WORLD, "train", ["en"]) if all(q in FOUND for q in each.extra["queries"])
    )
    teacher, turns = PlanTeacher(), [("environment", question.text), ("policy", "<plan> ... </plan>")]
    for number, query in enumerate(question.extra["queries"], start=1):
        assert (text := teacher.next_text(question, turns)) == f"<search> {query}</search>"
        turns += [("policy", text), ("environment", information(query))]
        text = teacher.next_text(question, turns)
        assert text == f"<subAnswer> #{number} = {question.extra['sub_answers'][f'#{number}'][0]}</subAnswer>"
        turns += [("policy", text), ("environment", "\nnext\n")]
    assert teacher.next_text(question, turns).startswith("<answer> ")


def test_some_plans_are_circles():
    questions = [*WORLD.questions("train", ["en"])[:200], *comparison_questions(WORLD, "train", ["en"])[:100]]
    teacher, faults = PlanTeacher(careless=0.2), []
    for question in questions:
        try:
            plan = parse_plan(written_plan(teacher.next_text(question, [("environment", question.text)])))
            faults.append(plan != plan_of_question(question))  # of a comparison it is a reference to a later answer
        except BadPlan as error:
            assert error.fault == "cyclic"
            faults.append(True)
    assert 0.12 < sum(faults) / len(faults) < 0.28
