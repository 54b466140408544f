"""The losses against hand numbers, NumPy as TRL writes them, and PyTorch's gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lcrag.errors import UserError
from lcrag.learning import PolicyGradient, Supervised, policy_gradient_loss, supervised_loss
from lcrag.learning.losses import kl_k1, kl_k2, kl_k3, loss_normaliser

AGGREGATIONS, RATIOS = ("sequence_mean", "token_mean", "constant"), ("token", "sequence")


def random_case(seed=0, batch=5, time=7):
    random = np.random.default_rng(seed)
    log_probabilities = random.normal(-1.5, 0.6, (batch, time)).astype(np.float32)
    sampling = (log_probabilities + random.normal(0, 0.3, (batch, time))).astype(np.float32)
    reference = (log_probabilities + random.normal(0, 0.3, (batch, time))).astype(np.float32)
    mask = random.random((batch, time)) < 0.6
    mask[:, 0] = True
    return log_probabilities, sampling, random.normal(size=batch).astype(np.float32), mask, reference


def torch_loss(log_probabilities, sampling, advantages, mask, reference, aggregation, ratio, coefficient):
    """GRPO and GSPO in PyTorch, in the order TRL computes them."""
    log_ratio = log_probabilities - sampling
    if ratio == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    coefficients = torch.exp(log_ratio)
    clipped = torch.clamp(coefficients, 1 - 0.2, 1 + 0.28)
    per_token = -torch.min(coefficients * advantages[:, None], clipped * advantages[:, None])
    difference = reference - log_probabilities
    per_token = per_token + coefficient * (torch.exp(difference) - difference - 1)
    if aggregation == "sequence_mean":
        return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if aggregation == "token_mean":
        return (per_token * mask).sum() / mask.sum().clamp(min=1.0)
    return (per_token * mask).sum() / (mask.shape[0] * mask.shape[1])


@pytest.mark.parametrize(("aggregation", "ratio"), itertools.product(AGGREGATIONS, RATIOS))
def test_loss_and_gradient_equal_pytorch(aggregation, ratio):
    log_probabilities, sampling, advantages, mask, reference = random_case()

    def ours(log_probabilities):
        return policy_gradient_loss(
            log_probabilities, sampling, advantages, mask, clip_low=0.2, clip_high=0.28, aggregation=aggregation,
            ratio=ratio, reference_log_probabilities=reference, kl_coefficient=0.1,
        )  # fmt: skip

    (loss, metrics), gradient = jax.value_and_grad(ours, has_aux=True)(log_probabilities)
    leaf = torch.tensor(log_probabilities, dtype=torch.float64, requires_grad=True)
    others = [torch.tensor(a, dtype=torch.float64) for a in (sampling, advantages, mask, reference)]
    expected = torch_loss(leaf, *others, aggregation, ratio, 0.1)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(metrics["loss/policy"] + metrics["loss/kl"], loss, rtol=1e-6)


def test_hand_numbers_of_the_clip():
    # Ratios 2, 2, 0.5, 0.5 with advantages +, -, +, -: the first and the last are clipped.
    log_probabilities = jnp.log(jnp.array([[2.0], [2.0], [0.5], [0.5]]))
    advantages = jnp.array([1.0, -1.0, 1.0, -1.0])
    loss, metrics = policy_gradient_loss(log_probabilities, jnp.zeros((4, 1)), advantages, jnp.ones((4, 1), bool))
    np.testing.assert_allclose(loss, (-1.2 + 2.0 - 0.5 + 0.8) / 4, rtol=1e-6)
    np.testing.assert_allclose(metrics["ratio/mean"], 1.25, rtol=1e-6)
    np.testing.assert_allclose(metrics["ratio/clipped_high"], 0.25)
    np.testing.assert_allclose(metrics["ratio/clipped_low"], 0.25)
    np.testing.assert_allclose(metrics["sampling_training_gap"], np.log(2), rtol=1e-6)


def test_the_tail_of_the_ratios_is_beyond_a_factor_of_two_on_either_side():
    log_probabilities = jnp.log(jnp.array([[2.1, 1.9, 0.51, 0.49, 9.0]]))
    mask = jnp.array([[True, True, True, True, False]])
    _, metrics = policy_gradient_loss(log_probabilities, jnp.zeros((1, 5)), jnp.ones(1), mask)
    np.testing.assert_allclose(metrics["ratio/tail"], 2 / 4)


def test_hand_numbers_of_the_normalisers():
    # On policy the loss is -A: rows of 1 and 3 tokens with advantages 1 and 2, in a 2 x 4 array.
    mask = jnp.array([[True, False, False, False], [True, True, False, True]])
    zeros = jnp.zeros((2, 4))
    expected = {"sequence_mean": -(1 + 2) / 2, "token_mean": -(1 + 6) / 4, "constant": -(1 + 6) / 8}
    for aggregation, value in expected.items():
        loss, _ = policy_gradient_loss(zeros, zeros, jnp.array([1.0, 2.0]), mask, aggregation=aggregation)
        np.testing.assert_allclose(loss, value)
    np.testing.assert_allclose(loss_normaliser(mask, "constant", length=10), 20)


def test_hand_numbers_of_the_estimators():
    log_ratio = jnp.log(2.0)
    found = [float(estimate(log_ratio)) for estimate in (kl_k1, kl_k2, kl_k3)]
    np.testing.assert_allclose(found, [-np.log(2), np.log(2) ** 2 / 2, 1 - np.log(2)], rtol=1e-6)


@pytest.mark.parametrize(("aggregation", "ratio"), itertools.product(AGGREGATIONS, RATIOS))
def test_padding_is_never_read(aggregation, ratio):
    *arrays, mask, reference = random_case()
    log_probabilities, sampling, advantages = arrays
    wider = np.repeat(advantages[:, None], mask.shape[1], axis=1)

    def loss_and_gradient(outside):
        arrays = [np.where(mask, a, outside) for a in (log_probabilities, sampling, wider, reference)]

        def loss(log_probabilities):
            return policy_gradient_loss(
                log_probabilities, *arrays[1:3], mask, aggregation=aggregation, ratio=ratio,
                reference_log_probabilities=arrays[3], kl_coefficient=0.1,
            )[0]  # fmt: skip

        return jax.value_and_grad(loss)(arrays[0])

    jax.tree.map(np.testing.assert_array_equal, loss_and_gradient(0.0), loss_and_gradient(np.nan))


def test_an_absurd_ratio_leaves_a_finite_gradient():
    gradient = jax.grad(lambda x: policy_gradient_loss(x, x - 500.0, jnp.ones(1), jnp.ones((1, 1), bool))[0])
    assert np.isfinite(gradient(jnp.zeros((1, 1)))).all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_add_up_to_the_whole(aggregation):
    log_probabilities, sampling, advantages, mask, _ = random_case(seed=1, batch=6)
    length = mask.shape[-1] if aggregation == "constant" else None
    total = loss_normaliser(mask, aggregation, length)
    whole, _ = policy_gradient_loss(log_probabilities, sampling, advantages, mask, aggregation=aggregation)
    objective = PolicyGradient(aggregation=aggregation, constant_length=length)
    parts = [
        objective.loss(log_probabilities[p], sampling[p], advantages[p], mask[p], normaliser=total)[0]
        for p in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-5)


def test_supervised_is_cross_entropy_of_the_targets():
    random = np.random.default_rng(0)
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    mask = np.array([[False, True, True], [False, False, True]])
    log_probabilities = np.asarray(torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0])
    expected = torch.nn.functional.cross_entropy(logits[torch.tensor(mask)], targets[torch.tensor(mask)])
    loss, metrics = supervised_loss(np.where(mask, log_probabilities, random.normal()), mask)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/supervised"], expected, rtol=1e-5)


def test_user_errors():
    arrays = jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.zeros(1), jnp.ones((1, 1), bool)
    for settings in ({"aggregation": "mean"}, {"ratio": "word"}, {"kl_estimator": "k4"}, {"kl_coefficient": 0.1}):
        with pytest.raises(UserError):
            policy_gradient_loss(*arrays, **settings)
    for settings in ({"kl_estimator": "k4"}, {"aggregation": "constant"}, {"constant_length": 5}):
        with pytest.raises(UserError):
            PolicyGradient(**settings)
    with pytest.raises(UserError, match="constant_length is 0"):
        PolicyGradient(aggregation="constant", constant_length=0)
    for name in ("clip_low", "clip_high", "kl_coefficient"):
        with pytest.raises(UserError, match=f"{name} -0.1.*negative"):
            PolicyGradient(**{name: -0.1})
    with pytest.raises(UserError):
        Supervised(aggregation="constant")
