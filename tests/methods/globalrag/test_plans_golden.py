"""Golden plans as questions carry them."""

import copy

import pytest

from lcrag.atlas import build_world
from lcrag.methods.globalrag.plans import golden_graph, golden_plans

GRAPH = {
    "Q1": {"query": "Who directed Jaws?", "answer": "Steven Spielberg", "previous": [], "supports": ["Jaws (film)"]},
    "Q2": {"query": "Where was #1 born?", "answer": ["Cincinnati", "Cincinnati, Ohio"], "previous": ["Q1"]},
}
PLAN = {"plan": {"Q1": ["Who?", "#1"], "Q2": ["Where, #1?", "#2"]}, "sub_answers": {"#1": ["He"], "#2": ["Here"]}}


def changed(original, *path, to):
    other = copy.deepcopy(original)
    place = other
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return other


def test_a_question_without_a_plan_has_none():
    assert golden_plans({"kind": "capital"}) == ()


def test_several_graphs_of_a_question():
    first, second = golden_plans({"golden_plans": [GRAPH, {"Q1": {"query": "Where?", "answer": ["Ohio"]}}]})
    assert first == golden_graph(GRAPH) and first.plan.edges == (("Q1", "Q2"),)
    assert first.answers == {"Q1": ("Steven Spielberg",), "Q2": ("Cincinnati", "Cincinnati, Ohio")}
    assert second.plan.questions == {"Q1": "Where?"} and second.answers == {"Q1": ("Ohio",)}


def test_a_plan_with_its_sub_answers():
    [golden] = golden_plans(PLAN)
    assert golden.plan.questions == {"Q1": "Who?", "Q2": "Where, #1?"}
    assert golden.answers == {"Q1": ("He",), "Q2": ("Here",)}


def test_the_atlas_s_two_hop_questions_carry_one():
    for question in build_world(0).questions("held_out", ("en", "ja"), hops=2):
        [golden] = golden_plans(question.extra)
        assert golden.plan.edges == (("Q1", "Q2"),) and golden.answers["Q2"] == question.answers


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"golden_plans": []}, "golden_plans: it is no list of one graph or more"),
        ({"golden_plans": GRAPH}, "golden_plans: it is no list"),
        ({"golden_plans": [GRAPH, []]}, "golden_plans.1: it is no object of sub-questions"),
        ({"golden_plans": [{"Q1": "Who?"}]}, "golden_plans.0: it is no object of sub-questions"),
        ({"golden_plans": [changed(GRAPH, "Q1", "query", to="")]}, "golden_plans.0: Q1 has no query"),
        ({"golden_plans": [changed(GRAPH, "Q1", "answer", to=[])]}, "golden_plans.0: answer of Q1: it is no text"),
        ({"golden_plans": [changed(GRAPH, "Q2", "answer", to=[3])]}, "golden_plans.0: answer of Q2: it is no text"),
        ({"golden_plans": [changed(GRAPH, "Q2", "previous", to=[])]}, r"Q2 has previous \[\], but its query names"),
        ({"golden_plans": [changed(GRAPH, "Q2", "query", to="#3?")]}, "golden_plans.0: Q2 names #3, which no question"),
        ({"golden_plans": [changed(GRAPH, "Q1", "query", to="#2?")]}, "the plan is cyclic"),
        (changed(PLAN, "plan", "Q1", to="Who?"), "plan: Q1 is not a question and a placeholder"),
        (changed(PLAN, "sub_answers", to={"#1": ["He"]}), "sub_answers.#2: it is no text that says something"),
        (changed(PLAN, "sub_answers", "#3", to=["She"]), "sub_answers: #3 is the placeholder of no question"),
        ({"plan": PLAN["plan"]}, "sub_answers.#1: it is no text"),
    ],
)
def test_what_is_none_is_said_in_one_line(extra, said):
    with pytest.raises(ValueError, match=said) as caught:
        golden_plans(extra)
    assert "\n" not in str(caught.value)
