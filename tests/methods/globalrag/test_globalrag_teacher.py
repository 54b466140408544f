"""The rule-based teacher of golden plans: what it plans, searches for, gives up and answers."""

import pytest

from lcrag.atlas import build_world
from lcrag.atlas.comparisons import comparison_questions
from lcrag.methods.globalrag.plans import BadPlan, parse_plan
from lcrag.methods.globalrag.teacher import PlanTeacher, plan_of_question

WORLD = build_world(0)
ONE = WORLD.questions("train", ["en"], hops=1)[0]
TWO = WORLD.questions("train", ["en"], hops=2)[0]
COMPARISON = comparison_questions(WORLD, "train", ["en"])[0]
FOUND = {f"{each.title} {each.text.partition(':')[0]}": each for each in WORLD.passages("en")}


def written_plan(text):
    return text.partition("<plan>")[2].partition("</plan>")[0]


def information(query):
    found = FOUND.get(query)
    shown = f" {found.title}: {found.text}" if found else " No passages were found."
    return f"<information>\n{shown}\n</information>"


@pytest.mark.parametrize(("question", "count"), [(ONE, 1), (TWO, 2), (COMPARISON, 2)])
def test_it_plans_first(question, count):
    text = PlanTeacher().next_text(question, [("environment", question.text)])
    plan = parse_plan(written_plan(text))
    assert plan == plan_of_question(question) and len(plan.questions) == count
    assert bool(plan.edges) == (question is TWO)


@pytest.mark.parametrize("question", [ONE, TWO, COMPARISON])
def test_it_searches_and_gives_up(question):
    teacher = PlanTeacher(budget=2)
    turns = [("environment", question.text), ("policy", "<plan> ... </plan>"), ("environment", "\nQ1: ...\n")]
    for _ in range(2):
        text = teacher.next_text(question, turns)
        assert text.startswith("<search> ") and text.endswith("</search>")
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
