"""The three scores of a plan, by hand; graph matching is tested against brute force on its own."""

import math

import numpy as np
import pytest

from lcrag.errors import UserError
from lcrag.methods.globalrag.matching import PlanPair, plan_rewards, plan_scores
from lcrag.methods.globalrag.plans import GoldenPlan, plan_of

CREEK = {"Q1": ["Whose mouth is Toongabbie Creek?", "#1"], "Q2": ["Into what does #1 flow?", "#2"]}
ANSWERS = {"Q1": ["Parramatta River"], "Q2": ["Sydney Harbour", "Port Jackson"]}


def words(texts, others):
    """A similarity without a model: shared words of all words."""
    sets = [[set(text.lower().split()) for text in side] for side in (texts, others)]
    return np.array([[len(a & b) / len(a | b) for b in sets[1]] for a in sets[0]])


def test_the_golden_plan_itself_scores_one():
    found = {"Q1": "Parramatta River", "Q2": "Sydney Harbour"}
    assert plan_rewards(CREEK, CREEK, found, ANSWERS, words) == {"structural": 1, "semantic": 1, "subgoal": 1}


def test_numbering_and_order_do_not_matter():
    other = {"Q7": ["Into what does #3 flow?", "#7"], "Q3": ["Whose mouth is Toongabbie Creek?", "#3"]}
    found = {"#3": "the Parramatta river", "#7": "Port Jackson"}
    assert plan_rewards(other, CREEK, found, ANSWERS, words) == {"structural": 1, "semantic": 1, "subgoal": 1}


def test_a_missing_sub_answer_counts_zero_for_its_question_only():
    scores = plan_rewards(CREEK, CREEK, {"Q2": "Sydney"}, ANSWERS, words)
    assert scores == {"structural": 1, "semantic": 1, "subgoal": pytest.approx((0 + 2 / 3) / 2)}


def test_another_structure():
    """Without the edge: one deletion of 3 elements; of the two questions only one can match."""
    flat = CREEK | {"Q2": ["Into what does something flow?", "#2"]}
    scores = plan_rewards(flat, CREEK, {"Q1": "Parramatta River", "Q2": "Sydney Harbour"}, ANSWERS, words)
    assert scores == {"structural": pytest.approx(math.exp(-1 / 3)), "semantic": 0.5, "subgoal": 0.5}
    assert plan_rewards(flat, CREEK, {}, ANSWERS, words, structure="binary")["structural"] == 0
    assert plan_rewards(CREEK, CREEK, {}, ANSWERS, words, structure="binary")["structural"] == 1


def test_a_question_too_many_costs_structure_alone():
    longer = CREEK | {"Q3": ["What is the area of #2?", "#3"]}
    found = {"Q1": "Parramatta River", "Q2": "Sydney Harbour", "Q3": "55 km2"}
    scores = plan_rewards(longer, CREEK, found, ANSWERS, words)
    assert scores == {"structural": pytest.approx(math.exp(-2 / 3)), "semantic": 1, "subgoal": 1}


@pytest.mark.parametrize(
    "plan", [None, {}, [], "no plan", {"Q1": "Who?"}, {"Q1": ["Who is #1?", "#1"]}, {"Q1": ["Who is #2?", "#1"]}]
)
def test_what_is_no_plan_scores_nothing(plan):
    scores = plan_rewards(plan, CREEK, {"Q1": "Parramatta River"}, ANSWERS, words)
    assert scores == {"structural": 0, "semantic": 0, "subgoal": 0}


def test_the_best_of_several_golden_plans_counts():
    other = {"Q1": ["Into what does Toongabbie Creek's river flow?", "#1"]}
    scores = plan_rewards(CREEK, [other, CREEK], {"Q1": "Parramatta River"}, [{"Q1": "Sydney Harbour"}, ANSWERS], words)
    assert scores == {"structural": 1, "semantic": 1, "subgoal": 0.5}


def test_mistakes_of_the_caller():
    with pytest.raises(UserError, match="no structural reward 'exact': choose one of graded, binary"):
        plan_rewards(CREEK, CREEK, {}, ANSWERS, words, structure="exact")
    with pytest.raises(ValueError, match="the plan is cyclic"):
        plan_rewards(CREEK, {"Q1": ["#1?", "#1"]}, {}, {"Q1": "x"}, words)
    with pytest.raises(ValueError, match="sub_answers.#2: it is not a non-empty text"):
        plan_rewards(CREEK, CREEK, {}, {"Q1": "x"}, words)


def test_a_batch_scores_as_its_episodes_do_alone():
    """And asks about all sub-answers at once."""
    asked = []

    def compare(answers, golds):
        asked.append(len(answers))
        return np.array([float(answer in gold) for answer, gold in zip(answers, golds, strict=True)])

    golden = GoldenPlan(plan_of(CREEK), {key: tuple(value) for key, value in ANSWERS.items()})
    flat = plan_of(CREEK | {"Q2": ["Into what does something flow?", "#2"]})
    batch = [
        PlanPair(plan_of(CREEK), {"Q1": "Parramatta River"}, [golden]),
        PlanPair(None, {}, [golden]),
        PlanPair(flat, {"Q1": "Parramatta River"}, [golden]),
        PlanPair(plan_of(CREEK), {}, [golden, golden]),
    ]
    together = plan_scores(batch, words, compare=compare)
    assert asked == [2]
    for name, values in together.items():
        assert values.tolist() == [plan_scores([each], words, compare=compare)[name][0] for each in batch]
    assert together["cut"].tolist() == [0, 0, 0, 0]
    assert {name: len(values) for name, values in plan_scores([], words).items()} == dict.fromkeys(together, 0)
