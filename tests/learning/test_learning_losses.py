"""Advantages and losses against hand-computed numbers, and their invariances."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_standin import batch_of_step, hidden, new_params, unembed

from lcrag.errors import UserError
from lcrag.learning import PolicyGradient, generalized_advantages, group_advantages, make_score, policy_gradient_loss
from lcrag.learning.losses import kl_k1, kl_k2, kl_k3, loss_normaliser

# --- Advantages ---

N = 7
REWARDS = st.lists(st.integers(-256, 256).map(lambda number: number / 128), min_size=N, max_size=N)
IDS = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 2), min_size=N, max_size=N)


def in_groups(rewards, ids, advantage_of_group):
    """Apply a function to each group's rewards, one group at a time; a group of one gets 0."""
    advantages = np.zeros(len(rewards))
    for group in (ids == each for each in set(ids.tolist())):
        advantages[group] = advantage_of_group(rewards[group]) if group.sum() > 1 else 0
    return advantages


def test_hand_numbers():
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


@given(REWARDS, IDS, st.sampled_from([0, 1]), st.sampled_from([1, 2**31]))
def test_equals_a_loop_over_groups(rewards, ids, ddof, factor):
    """Ids may have 64 bits."""
    rewards, ids = np.array(rewards), np.array(ids) * factor
    expected = in_groups(rewards, ids, lambda r: (r - r.mean()) / (r.std(ddof=ddof) + 1e-6))
    np.testing.assert_allclose(group_advantages(rewards, ids, ddof=ddof), expected, atol=1e-3)
    centred = in_groups(rewards, ids, lambda r: r - r.mean())
    np.testing.assert_allclose(group_advantages(rewards, ids, normalise_std=False), centred, atol=1e-5)


estimated = jax.jit(generalized_advantages, static_argnames=("discount", "trace"))


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.5, 0.0]))
def test_generalized_advantages_jump_over_retrieved_tokens(seed, discount, trace):
    random = np.random.default_rng(seed)
    rewards, values = random.normal(size=(2, 3, 8)).astype(np.float32)
    mask = random.random((3, 8)) < 0.6
    expected = np.zeros((3, 8))
    for row in range(3):
        advantage = value_next = 0.0
        for t in reversed(np.flatnonzero(mask[row])):
            advantage = rewards[row, t] + discount * value_next - values[row, t] + discount * trace * advantage
            expected[row, t], value_next = advantage, values[row, t]
    unread = [np.where(mask, array, np.nan) for array in (rewards, values)]
    advantages, returns = estimated(*unread, mask, discount=discount, trace=trace)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_allclose(returns, np.where(mask, expected + values, 0), atol=1e-5)


# --- Losses ---

AGGREGATIONS, RATIOS = ("sequence_mean", "token_mean", "constant"), ("token", "sequence")
LOW, HIGH, KL = 0.2, 0.28, 0.1
compiled_loss = jax.jit(policy_gradient_loss, static_argnames="aggregation")


def random_case(seed=0, batch=5, time=7):
    """(log-probabilities, sampling, advantages, mask, another policy's log-probabilities)."""
    random = np.random.default_rng(seed)
    log_probabilities = random.normal(-1.5, 0.6, (batch, time)).astype(np.float32)
    sampling, other = (log_probabilities + random.normal(0, 0.3, (batch, time)).astype(np.float32) for _ in range(2))
    mask = random.random((batch, time)) < 0.6
    mask[:, 0] = True
    return log_probabilities, sampling, random.normal(size=batch).astype(np.float32), mask, other


def torch_loss(log_probabilities, sampling, advantages, mask, reference, aggregation, ratio, cap):
    """GRPO, GSPO and the mode "token_truncate" of importance sampling in PyTorch, in the order TRL computes them."""
    old = sampling if cap is None else reference + 0.1
    log_ratio = log_probabilities - old
    if ratio == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    coefficients = torch.exp(log_ratio)
    clipped = torch.clamp(coefficients, 1 - LOW, 1 + HIGH)
    per_token = -torch.min(coefficients * advantages[:, None], clipped * advantages[:, None])
    if cap is not None:
        per_token = per_token * torch.clamp(torch.exp((old - sampling) * mask), max=cap)
    difference = reference - log_probabilities
    per_token = per_token + KL * (torch.exp(difference) - difference - 1)
    if aggregation == "sequence_mean":
        return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if aggregation == "token_mean":
        return (per_token * mask).sum() / mask.sum().clamp(min=1.0)
    return (per_token * mask).sum() / (mask.shape[0] * mask.shape[1])


@pytest.mark.parametrize(
    ("aggregation", "ratio", "cap"), [*itertools.product(AGGREGATIONS, RATIOS, [None]), ("token_mean", "token", 1.3)]
)
def test_loss_and_gradient_equal_trl(aggregation, ratio, cap):
    """What is outside the mask is never read: ours has NaN there."""
    now, sampling, advantages, mask, reference = random_case()
    wide = np.repeat(advantages[:, None], mask.shape[1], axis=1)
    before, advantage, goal, old = (np.where(mask, a, np.nan) for a in (sampling, wide, reference, reference + 0.1))
    settings = {"aggregation": aggregation, "ratio": ratio, "clip_low": LOW, "clip_high": HIGH, "kl_coefficient": KL}
    settings |= {} if cap is None else {"importance_cap": cap, "old_log_probabilities": old}

    def ours(x):
        x = jnp.where(mask, x, jnp.nan)
        return policy_gradient_loss(x, before, advantage, mask, reference_log_probabilities=goal, **settings)

    (loss, metrics), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(now)
    leaf = torch.tensor(now, dtype=torch.float64, requires_grad=True)
    others = [torch.tensor(each, dtype=torch.float64) for each in (sampling, advantages, mask, reference)]
    expected = torch_loss(leaf, *others, aggregation, ratio, cap)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(metrics["loss/policy"] + metrics["loss/kl"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["sampling_training_gap"], np.abs(now - sampling)[mask].max(), rtol=1e-5)
    if cap is not None:
        weights = np.exp(reference + 0.1 - sampling)[mask]
        np.testing.assert_allclose(metrics["importance/mean"], np.minimum(weights, cap).mean(), rtol=1e-5)
        np.testing.assert_allclose(metrics["importance/truncated"], (weights > cap).mean(), rtol=1e-5)
        assert 0 < metrics["importance/truncated"] < 1


def test_the_clip_of_a_sequence_ratio_ignores_what_the_sampler_computed():
    """GSPO's clip of 3e-4 is narrower than the difference of two computations of one probability."""
    loss = jax.jit(functools.partial(policy_gradient_loss, ratio="sequence", clip_low=3e-4, clip_high=4e-4))
    now, _, advantages, mask, _ = random_case()
    moved = now - np.float32(0.01) * np.sign(advantages)[:, None]
    _, metrics = loss(now, now + np.float32(0.01), advantages, mask, old_log_probabilities=moved)
    assert float(metrics["ratio/clipped"]) == pytest.approx(1)
    # in the only update on a rollout, the old policy need not be scored
    batch = batch_of_step(0, rows=2)
    for options in ({"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}, {"importance_cap": 1.1}):
        rescored = make_score(hidden, unembed)(new_params(), batch)[0]
        first = jax.tree.map(lambda leaf: leaf[0], batch)
        given = [first, first.replace(old_log_probabilities=rescored)]
        (_, metrics), (_, same) = (jax.jit(PolicyGradient(**options))(rescored, each, jnp.ones(())) for each in given)
        assert (float(metrics["ratio/mean"]), float(metrics["ratio/clipped"])) == (1, 0)
        assert metrics == same


def test_hand_numbers_of_the_clip():
    # Ratios 2, 2, 0.5, 0.4 with advantages +, -, +, -: the first and the last are clipped, the last is beyond the tail.
    log_probabilities = jnp.log(jnp.array([[2.0], [2.0], [0.5], [0.4]]))
    advantages = jnp.array([1.0, -1.0, 1.0, -1.0])
    loss, metrics = compiled_loss(log_probabilities, jnp.zeros((4, 1)), advantages, jnp.ones((4, 1), bool))
    np.testing.assert_allclose(loss, (-1.2 + 2.0 - 0.5 + 0.8) / 4, rtol=1e-6)
    expected = {"mean": 1.225, "clipped_high": 0.25, "clipped_low": 0.25, "tail": 0.25}
    assert {name: float(metrics[f"ratio/{name}"]) for name in expected} == pytest.approx(expected)
    np.testing.assert_allclose(metrics["sampling_training_gap"], np.log(2.5), rtol=1e-6)


def test_hand_numbers_of_the_estimators():
    found = [float(estimate(jnp.log(2.0))) for estimate in (kl_k1, kl_k2, kl_k3)]
    np.testing.assert_allclose(found, [-np.log(2), np.log(2) ** 2 / 2, 1 - np.log(2)], rtol=1e-6)
    mask = jnp.array([[True, False, False, False], [True, True, False, True], [False] * 4])
    np.testing.assert_allclose(loss_normaliser(mask, "constant", length=10), 20)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("away", [-np.inf, -500.0, -21.0, 21.0, 500.0])
def test_an_absurd_ratio_leaves_a_finite_loss_and_gradient(estimator, away):
    def loss(x, away):
        zeros, mask = jnp.zeros((1, 1)), jnp.ones((1, 1), bool)
        settings = {"kl_estimator": estimator, "kl_coefficient": 5e-4, "reference_log_probabilities": zeros + away}
        return policy_gradient_loss(x, zeros + away, jnp.ones(1), mask, **settings)

    (found, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.zeros((1, 1)), away)
    assert np.isfinite([found, gradient[0, 0], *(metrics[name] for name in ("reference_kl", "approximate_kl"))]).all()
    bound = loss(jnp.zeros((1, 1)), np.sign(away) * 20.0)[1]
    np.testing.assert_allclose(metrics["loss/kl"], bound["loss/kl"], rtol=1e-6)


@pytest.mark.parametrize("nats", [5.0, 19.0, 20.0, 60.0])
def test_a_token_far_from_the_reference_does_not_outweigh_a_batch(nats):
    log_probabilities, sampling, advantages, mask, reference = map(jnp.asarray, random_case(batch=64, time=16))

    def norm(away):
        def loss(x):
            far = reference.at[0, 0].set(x[0, 0] + away)
            settings = {"reference_log_probabilities": far, "kl_coefficient": 5e-4}
            return policy_gradient_loss(x, sampling, advantages, mask, **settings)[0]

        return float(jnp.linalg.norm(jax.grad(loss)(log_probabilities)))

    assert norm(nats) == pytest.approx(norm(0.0), rel=0.05)


def test_settings_that_lack_another_are_refused():
    with pytest.raises(UserError, match="PolicyGradient.constant_length"):
        PolicyGradient(aggregation="constant")
    with pytest.raises(UserError, match="reference"):
        policy_gradient_loss(*random_case()[:4], kl_coefficient=0.1)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("clip_low", 1.5, "clip_low is 1.5: it must be from zero to one"),
        ("kl_coefficient", -0.1, "kl_coefficient is -0.1: it must be zero or more"),
        ("importance_cap", 0.0, "importance_cap is 0.0: it must be finite and above zero"),
        ("ratio", "word", "ratio is 'word': it must be 'token' or 'sequence'"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_range(name, value, said):
    with pytest.raises(UserError) as caught:
        PolicyGradient(**{name: value})
    assert said in str(caught.value)
