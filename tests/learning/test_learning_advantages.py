"""Advantages against plain loops, and the invariances a group baseline must have."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrag.learning import generalized_advantages, group_advantages

N = 7
# multiples of 1/128, which a shift by a whole number leaves exact in float32
REWARDS = st.lists(st.integers(-256, 256).map(lambda number: number / 128), min_size=N, max_size=N)
IDS = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 2), min_size=N, max_size=N)


def in_groups(rewards, ids, advantage_of_group):
    """Apply a function to each group's rewards, one group at a time; a group of one gets 0."""
    rewards, ids = np.asarray(rewards, np.float64), np.asarray(ids)
    advantages = np.zeros(len(rewards))
    for group in set(ids.tolist()):
        if (ids == group).sum() > 1:
            advantages[ids == group] = advantage_of_group(rewards[ids == group])
    return advantages


def test_hand_numbers():
    rewards, ids = np.array([1.0, 0.0, 5.0, 2.0, 0.0]), np.array([7, 7, -3, 7, 12])
    np.testing.assert_allclose(group_advantages(rewards, ids), [0, -1, 0, 1, 0], atol=2e-6)
    np.testing.assert_allclose(group_advantages(rewards, ids, normalise_std=False), [0, -1, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(group_advantages(np.array([0.0, 2.0]), np.array([1, 1]), ddof=0), [-1, 1], atol=2e-6)
    # a floor of the deviation keeps near ties small
    rewards, ids = np.array([0.5, 0.51, 0.0, 1.0]), np.array([0, 0, 1, 1])
    np.testing.assert_allclose(group_advantages(rewards, ids), [-0.707, 0.707, -0.707, 0.707], atol=1e-3)
    floored = group_advantages(rewards, ids, min_std=0.1)
    np.testing.assert_allclose(floored, [-0.05, 0.05, -0.707, 0.707], atol=1e-3)
    # an episode without a score is in no baseline
    rewards, ids = np.array([0.0, np.nan, 1.0, np.nan, np.nan, 3.0, np.nan]), np.array([0, 0, 0, 1, 1, 2, 2])
    found = np.asarray(group_advantages(rewards, ids))
    np.testing.assert_allclose(found[[0, 2]], group_advantages(np.array([0.0, 1.0]), np.zeros(2, int)))
    np.testing.assert_array_equal(found[[1, 3, 4, 5, 6]], 0)
    for reward in (0.1, 1 / 3, 1e4 + 0.1):  # equal rewards teach exactly nothing
        assert not np.any(group_advantages(np.full(6, reward), np.full(6, 4)))


@given(REWARDS, IDS, st.sampled_from([0, 1]))
def test_equals_a_loop_over_groups(rewards, ids, ddof):
    rewards, ids = np.array(rewards), np.array(ids)
    expected = in_groups(rewards, ids, lambda r: (r - r.mean()) / (r.std(ddof=ddof) + 1e-6))
    np.testing.assert_allclose(group_advantages(rewards, ids, ddof=ddof), expected, atol=1e-3)
    centred = in_groups(rewards, ids, lambda r: r - r.mean())
    np.testing.assert_allclose(group_advantages(rewards, ids, normalise_std=False), centred, atol=1e-5)


@settings(max_examples=30)
@given(REWARDS, IDS, st.permutations(range(N)), st.integers(-4, 4))
def test_shift_permutation_and_renaming(rewards, ids, order, shift):
    rewards, ids, order = np.array(rewards), np.array(ids), np.array(order)
    advantages = np.asarray(group_advantages(rewards, ids))
    np.testing.assert_allclose(group_advantages(rewards + shift, ids), advantages, atol=2e-3)
    np.testing.assert_allclose(group_advantages(rewards[order], ids[order]), advantages[order], atol=1e-5)
    np.testing.assert_array_equal(group_advantages(rewards, ids * 2**31), advantages)
    np.testing.assert_array_equal(jax.jit(group_advantages)(rewards, np.int32(ids)), advantages)


estimated = jax.jit(generalized_advantages, static_argnames=("discount", "trace"))


def generalized_advantages_of_row(rewards, values, discount, trace):
    advantages = np.zeros(len(rewards))
    advantage = value_next = 0.0
    for t in reversed(range(len(rewards))):
        advantage = rewards[t] + discount * value_next - values[t] + discount * trace * advantage
        advantages[t], value_next = advantage, values[t]
    return advantages


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.5, 0.0]))
def test_generalized_advantages_jump_over_retrieved_tokens(seed, discount, trace):
    random = np.random.default_rng(seed)
    rewards, values = random.normal(size=(2, 3, 8)).astype(np.float32)
    mask = random.random((3, 8)) < 0.6
    expected = np.zeros((3, 8))
    for row in range(3):
        chosen = mask[row]
        expected[row, chosen] = generalized_advantages_of_row(
            rewards[row, chosen], values[row, chosen], discount, trace
        )
    unread = [np.where(mask, array, np.nan) for array in (rewards, values)]
    advantages, returns = estimated(*unread, mask, discount=discount, trace=trace)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_allclose(returns, np.where(mask, expected + values, 0), atol=1e-5)
