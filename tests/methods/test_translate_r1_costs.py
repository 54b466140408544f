"""What calls of a tool cost: the kernels against plain Python, and what they add to a reward."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_scripts import finished
from support import plain_rewards as oracle

from lcrag.errors import UserError
from lcrag.methods.translate_r1.costs import METHODS, cost, cost_adjusted_rewards, gate_firing_probability
from lcrag.rewards.terms import answer_only

SIZE = 8
SAMPLES = st.tuples(st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(0, 3), st.booleans())
GROUPS = st.lists(st.lists(SAMPLES, min_size=SIZE, max_size=SIZE), min_size=3, max_size=3)


@given(GROUPS, st.sampled_from(list(METHODS)), st.sampled_from([0.05, 0.1, 0.3]), st.integers(1, 8))
def test_agrees_with_plain_python_and_relative_costs_sum_to_zero(groups, method, strength, minimum):
    samples = np.array(groups, float)
    rewards, calls, correct = samples[..., 0], samples[..., 1].astype(int), samples[..., 2].astype(bool)
    expected = oracle.cost_adjusted_rewards(rewards, calls, correct, method, strength, minimum)
    adjusted = np.asarray(cost_adjusted_rewards(rewards, calls, correct, method, strength, minimum))
    np.testing.assert_allclose(adjusted, expected, atol=1e-6)
    if method in ("group_relative", "gated"):  # and touch correct samples only
        np.testing.assert_allclose((adjusted - rewards).sum(axis=-1), 0.0, atol=1e-5)
        np.testing.assert_allclose(np.where(correct, 0.0, adjusted - rewards), 0.0, atol=1e-6)


def adjusted(calls, correct, method, **options):
    rewards = np.array([correct], float)
    [row] = np.asarray(cost_adjusted_rewards(rewards, np.array([calls]), rewards > 0.5, method, **options))
    return row.tolist()


def test_by_hand():
    calls, correct = [0, 1, 2, 0, 2, 1, 0, 2], [1, 1, 1, 0, 0, 1, 0, 0]
    assert adjusted(calls, correct, "none") == correct
    assert adjusted(calls, correct, "flat", strength=0.1) == pytest.approx([1, 0.9, 0.8, 0, -0.2, 0.9, 0, -0.2])
    # Correct: 0, 1, 2 and 1 calls; w = 1, .5, 0, .5 with mean .5.
    relative = [1.05, 1, 0.95, 0, 0, 1, 0, 0]
    assert adjusted(calls, correct, "group_relative", strength=0.1) == pytest.approx(relative)
    assert adjusted(calls, correct, "gated", strength=0.1, minimum_native_correct=1) == pytest.approx(relative)
    assert adjusted(calls, correct, "gated", strength=0.1, minimum_native_correct=2) == correct
    # n = 0 and c = 2: cos(pi / 4) for one call, cos(2 pi / 6) for two.
    assert adjusted(calls, correct, "otc") == pytest.approx([1, 0.70711, 0.5, 0, 0, 0.70711, 0, 0], abs=1e-5)


def test_the_gates_firing_probability_counts_all_outcomes():
    for p, minimum in itertools.product((0.0, 0.25, 0.8, 1.0), (1, 6, 8)):
        outcomes = itertools.product((0, 1), repeat=SIZE)
        expected = sum(np.prod([p if each else 1 - p for each in o]) for o in outcomes if sum(o) >= minimum)
        assert gate_firing_probability(p, SIZE, minimum) == pytest.approx(expected)
    assert gate_firing_probability(0.8) == pytest.approx(0.797, abs=1e-3)
    assert gate_firing_probability(0.25) == pytest.approx(0.0042, abs=1e-4)


def episodes(group_ids, calls, answers):
    notes = [{"tool_calls": count} for count in calls]
    return finished(answers, [("4",)] * len(answers), group_ids=np.array(group_ids, int), extra=notes)


def test_a_reward_with_costs_in_any_order_and_groups_of_any_size():
    reward = cost(answer_only(), "gated", strength=0.1, minimum_native_correct=2)
    values = reward(episodes([7, 3, 7, 3, 7, 7], [0, 1, 1, 0, 0, 2], ["4", "4", "4", "5", "4", None]))
    assert values["exact_match"].tolist() == values["task"].tolist() == [1, 1, 1, 0, 1, 0]
    assert values["cost"] == pytest.approx([0.1 / 3, 0, -0.2 / 3, 0, 0.1 / 3, 0])
    assert values["total"] == pytest.approx(values["task"] + values["cost"])
    assert values["cost_fired"].tolist() == [1, 0, 1, 0, 1, 1]
    free = cost(answer_only(), "none")(episodes([0, 0], [0, 2], ["4", "4"]))
    assert free["total"].tolist() == [1, 1]
    assert free["cost"].tolist() == [0, 0]
    assert cost(answer_only(), "flat")(episodes([], [], []))["total"].shape == (0,)


def test_mistakes_that_show_in_the_first_step():
    with pytest.raises(UserError, match="cost.minimum_native_correct"):
        cost(answer_only()).check_groups(2)
    silent = episodes([0, 0], [0, 1], ["4", "4"])
    for extra in ((), [{}, {}]):
        with pytest.raises(UserError, match="tool_calls"):
            cost(answer_only(), "flat")(dataclasses.replace(silent, extra=extra))
