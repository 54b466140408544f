"""GlobalRAG's reward: its terms, their weights over the steps, one encoder call a step, and what a user gets wrong."""

import dataclasses
import math

import numpy as np
import pytest
from finished_episodes import finished

from lcrag.errors import UserError
from lcrag.methods.globalrag.rewards import annealed, globalrag_reward

PLAN = {"Q1": ["Which country has Lima?", "#1"], "Q2": ["What is the currency of #1?", "#2"]}
FLAT = {"Q1": ["Which country has Lima?", "#1"], "Q2": ["What is the currency of something?", "#2"]}
KNOWN = {"plan": PLAN, "sub_answers": {"#1": ["Peru"], "#2": ["sol"]}}
DONE = {"plan": PLAN, "sub_answers": {"Q1": "Peru", "Q2": "the sol"}, "well_formed": True}
NOTHING = {"plan": None, "sub_answers": {}, "well_formed": False}


class Encoder:
    """Orthogonal vectors: a text resembles only itself. Remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked.append(list(texts))
        return np.eye(len(texts), dtype=np.float32)


def episodes(*answers_and_notes, known=None, step=0):
    answers, notes = zip(*answers_and_notes, strict=True)
    known = known or [KNOWN] * len(answers)
    return finished(answers, [("sol",)] * len(answers), extra=notes, known=known, step=step)


BATCH = (
    ("Sol", DONE),
    ("sol", NOTHING),
    (None, DONE | {"well_formed": False}),
    ("dollar", DONE | {"plan": FLAT, "sub_answers": {"Q1": "Peru"}}),
)


def test_the_terms_and_their_sum():
    reward = globalrag_reward(Encoder(), transition_steps=None)
    assert isinstance(reward.models["encoder"], Encoder)
    rewards = reward(episodes(*BATCH))
    flat = math.exp(-1 / 3)
    assert rewards["squad_exact_match"].tolist() == [1, 1, 0, 0]
    assert rewards["format"].tolist() == [1, 0, 0, 1]
    assert rewards["semantic"].tolist() == [1, 0, 1, 0.5]
    assert rewards["structural"].tolist() == pytest.approx([1, 0, 1, flat])
    assert rewards["sub_goal"].tolist() == pytest.approx([1, 0, 1, 0.5])
    totals = [1 + 0.1 + 1.5, 1, 1.5, 0.1 + 0.25 + 0.5 * flat + 0.25]
    assert rewards["total"].tolist() == pytest.approx(totals)
    assert rewards["annealing"].tolist() == [1] * 4
    assert rewards["matches_cut"].tolist() == [0] * 4


def test_all_sub_questions_of_a_step_are_embedded_in_one_call_each_once():
    encoder = Encoder()
    reward = globalrag_reward(encoder)
    reward(episodes(*BATCH))
    assert encoder.asked == [["Which country has Lima?", "What is the currency of something?"]]
    reward(episodes(*BATCH, step=1))
    assert len(encoder.asked) == 2
    reward(episodes(("sol", NOTHING)))
    assert len(encoder.asked) == 2  # nobody planned anything


@pytest.mark.parametrize("step", [0, 44, 45, 46, 60, 200, 100_000])
def test_the_weights_fade_as_equation_6_says(step):
    share = 1 / (1 + math.exp(min(700.0, (step - 0.9 * 50) / 10)))
    assert annealed(0.5, 50)(step) == pytest.approx(0.5 * share)
    rewards = globalrag_reward(Encoder())(episodes(*BATCH, step=step))
    assert rewards["total"][0] == pytest.approx(1 + share * 1.6)
    assert rewards["annealing"].tolist() == pytest.approx([share] * 4)
    later = globalrag_reward(Encoder(), transition_steps=100, transition_width=5)(episodes(*BATCH, step=step))
    assert later["total"][0] == pytest.approx(1 + 1.6 / (1 + math.exp(min(700.0, (step - 90) / 5))))


def test_several_golden_graphs_and_the_binary_structure():
    def graph(node):
        return {"Q1": {"query": node, "answer": "sol"}}

    chain = {
        "Q1": {"query": "Which country has Lima?", "answer": "Peru"},
        "Q2": {"query": "What is the currency of #1?", "answer": ["sol"], "previous": ["Q1"]},
    }
    known = [{"golden_plans": [graph("What currency has Lima?"), chain]}]
    reward = globalrag_reward(Encoder(), transition_steps=None, structure="binary")
    assert reward(episodes(("sol", DONE), known=known))["total"] == pytest.approx([2.6])
    flat = reward(episodes(("sol", DONE | {"plan": FLAT}), known=known))
    assert flat["structural"].tolist() == [0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"answer": "exact"}, "'exact'"),
        ({"sub_answer": "f1"}, "'f1'"),
        ({"structure": "exact"}, "globalrag_reward.structure is 'exact': choose one of graded, binary"),
        ({"semantic_weight": -1}, "weights"),
        ({"threshold": 70}, "threshold"),
        ({"transition_width": 0}, "transition_width"),
        ({"transition_steps": 0}, "transition_steps"),
    ],
)
def test_mistakes_in_its_options(options, said):
    with pytest.raises(UserError, match=said):
        globalrag_reward(Encoder(), **options)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "needs a golden plan of every question, and 'Q0[?]' has none: train on the output"),
        (
            {"plan": {}},
            "the golden plan of the question 'Q0[?]' cannot be used: plan: the plan has no question",
        ),
    ],
)
def test_a_question_without_a_golden_plan(known, said):
    with pytest.raises(UserError, match=said):
        globalrag_reward(Encoder())(episodes(("sol", DONE), known=[known]))


def test_episodes_of_another_program():
    batch = dataclasses.replace(episodes(("sol", DONE)), extra=[{}])
    with pytest.raises(UserError, match=r"which the program does not report: bind Method.program = @globalrag"):
        globalrag_reward(Encoder())(batch)
