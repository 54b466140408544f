"""The correction between sampler and trainer, against TRL's in PyTorch and hand numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from learning_standin import batch_of_step, hidden, new_params, unembed

from lcrag.errors import UserError
from lcrag.learning import PolicyGradient, make_score
from lcrag.learning.update import make_gradients

CAP, LOW, HIGH = 1.3, 0.2, 0.28


def random_case(seed=0, shape=(5, 7)):
    random = np.random.default_rng(seed)
    old = random.normal(-1.5, 0.6, shape).astype(np.float32)
    now, sampling = (old + random.normal(0, 0.3, shape).astype(np.float32) for _ in range(2))
    mask = random.random(shape) < 0.6
    mask[:, 0] = True
    return now, old, sampling, random.normal(size=shape[0]).astype(np.float32), mask


def trl_loss(now, old, sampling, advantages, mask):
    """GRPOTrainer with vLLM's importance sampling correction in the mode "token_truncate", and the loss "dapo"."""
    ratio = torch.exp(now - old)
    clipped = torch.clamp(ratio, 1 - LOW, 1 + HIGH)
    per_token = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    correction = torch.clamp(torch.exp((old - sampling) * mask), max=CAP)
    return (per_token * correction * mask).sum() / mask.sum().clamp(min=1.0)


def test_loss_and_gradient_equal_trl():
    now, old, sampling, advantages, mask = random_case()

    def ours(now):
        objective = PolicyGradient(clip_low=LOW, clip_high=HIGH, aggregation="token_mean", importance_cap=CAP)
        return objective.loss(now, sampling, advantages, mask, old_log_probabilities=old)

    (loss, metrics), gradient = jax.value_and_grad(ours, has_aux=True)(now)
    leaf = torch.tensor(now, requires_grad=True)
    expected = trl_loss(leaf, *(torch.tensor(each) for each in (old, sampling, advantages, mask.astype(np.float32))))
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad, atol=1e-6)
    weights = np.exp(old - sampling)[mask]
    np.testing.assert_allclose(metrics["importance/mean"], np.minimum(weights, CAP).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["importance/truncated"], (weights > CAP).mean(), rtol=1e-5)
    assert 0 < metrics["importance/truncated"] < 1
    np.testing.assert_allclose(metrics["sampling_training_gap"], np.abs(now - sampling)[mask].max(), rtol=1e-5)


def test_hand_numbers():
    # Twice and four times as probable in training as in sampling, at a cap of 3: on policy the gradient is -w A.
    now, sampling = jnp.log(jnp.array([[0.5], [0.8]])), jnp.log(jnp.array([[0.25], [0.2]]))

    def loss(now):
        objective = PolicyGradient(importance_cap=3.0)
        return objective.loss(now, sampling, jnp.array([1.0, -1.0]), jnp.ones((2, 1), bool))[0]

    value, gradient = jax.value_and_grad(loss)(now)
    np.testing.assert_allclose(value, (-2 + 3) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[-1], [1.5]], rtol=1e-6)


def test_a_cap_changes_nothing_where_the_two_programs_agree():
    now, _, _, advantages, mask = random_case()
    plain, capped = (
        jax.value_and_grad(lambda x, cap=cap: PolicyGradient(importance_cap=cap).loss(x, now, advantages, mask)[0])(now)
        for cap in (None, 2.0)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), capped, plain)


def test_on_the_only_update_the_old_policy_need_not_be_scored():
    batch, objective = batch_of_step(0, rows=2), PolicyGradient(importance_cap=1.1)
    gradients = jax.jit(make_gradients(hidden, unembed, objective))
    scored = batch.replace(old_log_probabilities=make_score(hidden, unembed)(new_params(), batch))
    found, expected = (gradients(new_params(), each) for each in (batch, scored))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


def test_a_cap_must_be_positive():
    with pytest.raises(UserError, match="importance_cap is 0"):
        PolicyGradient(importance_cap=0.0)
