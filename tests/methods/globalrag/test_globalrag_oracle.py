"""The oracle that plays GlobalRAG's program, and the rule-based teacher of golden plans."""

import json

import pytest

from lcrag.atlas import build_world
from lcrag.atlas.comparisons import comparison_questions
from lcrag.curation.playing import play
from lcrag.episodes import Chat
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.methods.globalrag.golden_plans import golden_plans, with_own_plan
from lcrag.methods.globalrag.oracle import PlanOracle, PlanTeacher, plan_of_question
from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.globalrag.question_plan import BadPlan, parse_plan
from lcrag.retrieval.passages import Hit
from lcrag.testing import tiny_tokenizer

WORLD = build_world(seed=0)
ONE_HOP = WORLD.question(next(fact for fact in WORLD.facts if fact.id == "currency_code/FR"), "en")
TWO_HOPS = WORLD.question(next(item for item in WORLD.two_hops if item.id == "country_of_language+alpha_3/fi"), "en")
COMPARED = comparison_questions(WORLD, "train", ("en",))[0]


def knowing(lacking=()):
    """A search that finds the passage whose query it is."""
    facts = {fact.id: WORLD.passage(fact, "en") for fact in WORLD.facts if fact.id not in lacking}
    by_query = {f"{passage.title} {passage.text.split(': ')[0]}": passage for passage in facts.values()}

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


@pytest.mark.parametrize("question", [ONE_HOP, TWO_HOPS, COMPARED], ids=["one hop", "two hops", "comparison"])
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
    record = played(TWO_HOPS, knowing())
    first, second, last = (turn.text for turn in record.turns if turn.by == "policy")
    assert first == (
        f"<think> Finnish</think><plan> {json.dumps(TWO_HOPS.extra['plan'])}</plan>"
        "<subPlan><think> Finnish</think><search> Finnish main country</search>"
    )
    assert second == (
        "<think> Finland</think><subAnswer> #1 = Finland</subAnswer></subPlan>"
        "<subPlan><think> Finland</think><search> Finland three-letter code</search>"
    )
    assert (
        last == "<think> FIN</think><subAnswer> #2 = FIN</subAnswer></subPlan><think> FIN</think><answer> FIN</answer>"
    )


def test_where_a_collection_lacks_a_fact_it_says_so():
    record = played(TWO_HOPS, knowing(lacking=("alpha_3/FI",)))
    assert record.outcome.answer == "unknown"
    assert record.outcome.extra["sub_answers"]["Q2"] == "unknown"
    lost = played(TWO_HOPS, knowing(lacking=("country_of_language/fi",)))
    assert lost.outcome.answer == "unknown"
    assert lost.outcome.extra["well_formed"]
    assert lost.outcome.extra["sub_answers"] == {"Q1": "unknown", "Q2": "unknown"}


def test_a_careless_plan_names_no_earlier_answer():
    record = played(TWO_HOPS, knowing(), careless=1.0)
    assert record.outcome.extra["plan"]["Q2"] == ["What is the three-letter code of Finnish?", "#2"]
    assert record.outcome.answer == "FIN"
    questions = WORLD.questions("train", ("en",), hops=2)
    share = sum("#1?" not in PlanOracle(careless=0.3).next_text(each, ()) for each in questions) / len(questions)
    assert 0.2 < share < 0.4


def test_its_budget_ends_the_plan():
    record = played(TWO_HOPS, knowing(), budget=1)
    assert record.outcome.counts["valid_searches"] == 1
    assert record.outcome.counts["missing_sub_answers"] == 1


FOUND = {f"{each.title} {each.text.partition(':')[0]}": each for each in WORLD.passages("en")}


def written_plan(text):
    return text.partition("<plan>")[2].partition("</plan>")[0]


def information(query):
    found = FOUND.get(query)
    shown = f" {found.title}: {found.text}" if found else " No passages were found."
    return f"<information>\n{shown}\n</information>"


@pytest.mark.parametrize(("question", "count"), [(ONE_HOP, 1), (TWO_HOPS, 2), (COMPARED, 2)])
def test_it_plans_first(question, count):
    text = PlanTeacher().next_text(question, [("environment", question.text)])
    plan = parse_plan(written_plan(text))
    assert plan == plan_of_question(question)
    assert len(plan.questions) == count
    assert bool(plan.edges) == (question is TWO_HOPS)


@pytest.mark.parametrize("question", [ONE_HOP, TWO_HOPS, COMPARED])
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
        assert text == f"<subAnswer> #{number} = {FOUND[query].text.partition(': ')[2]}</subAnswer>"
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
