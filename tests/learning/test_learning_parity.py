"""The gradient of the GRPO loss, parameter by parameter, against the same loss written in PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch

from lcrag.learning import Layout, PolicyGradient, Trajectory, pack, policy_gradient_loss
from lcrag.learning.update import make_gradients
from lcrag.policy import hidden_states, load_hugging_face, save_hugging_face, unembed_log_probabilities
from lcrag.testing.random_decoders import DECODERS, saved_decoder

TOLERANCE = 1e-4  # of each parameter's gradient, in its Euclidean norm
TEMPERATURE, CLIP_LOW, CLIP_HIGH, KL_COEFFICIENT = 0.8, 0.2, 0.28, 0.1
LENGTHS = (24, 9, 17, 3)


def log_probabilities_in_torch(model, tokens) -> torch.Tensor:
    """Of each token but the first, given those before it."""
    tokens = torch.tensor(tokens, dtype=torch.int64)
    scores = torch.log_softmax(model(tokens[None]).logits[0, :-1] / TEMPERATURE, dim=-1)
    return scores.gather(1, tokens[1:, None])[:, 0]


def reference_of(sampling):
    """Stands in for a reference policy's log-probabilities: near those recorded, never equal."""
    return 1.1 * sampling + 0.05


def grpo_in_torch(model, episodes) -> torch.Tensor:
    """One episode at a time: no padding, no packing, no masks beyond the choice of the policy's own tokens."""
    total = torch.zeros(())
    for episode in episodes:
        own = torch.tensor(episode.by_policy[1:])
        now = log_probabilities_in_torch(model, episode.tokens)[own]
        before = torch.tensor(episode.log_probabilities[1:])[own]
        ratio = torch.exp(now - before)
        bounded = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        gain = torch.minimum(ratio * episode.advantage, bounded * episode.advantage)
        beside = reference_of(before) - now
        divergence = torch.exp(beside) - beside - 1
        total = total + (KL_COEFFICIENT * divergence - gain).mean()
    return total / len(episodes)


def gradient_in_torch(model, episodes) -> torch.Tensor:
    """The loss; its gradients stay with the model's parameters."""
    model.zero_grad()
    loss = grpo_in_torch(model, episodes)
    loss.backward()
    return loss


@pytest.fixture(scope="module", params=DECODERS)
def models(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return saved_decoder(folder, request.param), *load_hugging_face(folder)


def random_episodes(model) -> list[Trajectory]:
    """Texts half of which the policy wrote, a little earlier: some ratios are beyond the clip."""
    random = np.random.default_rng(0)
    episodes = []
    for length in LENGTHS:
        tokens = random.integers(0, model.config.vocab_size, length).astype(np.int32)
        by_policy = random.random(length) < 0.5
        by_policy[0], by_policy[-1] = False, True
        with torch.no_grad():
            now = log_probabilities_in_torch(model, tokens).numpy()
        recorded = np.concatenate([[0.0], now + random.normal(0, 0.3, length - 1)]).astype(np.float32)
        episodes.append(Trajectory(tokens, by_policy, recorded, float(random.normal())))
    return episodes


def gradient_of_padded_rows(config, params, episodes):
    """Every episode a row: the loss put together by hand from the public functions."""
    length = max(LENGTHS)

    def rows(name):
        padded = [np.pad(getattr(each, name), (0, length - len(each.tokens))) for each in episodes]
        return jnp.asarray(np.stack(padded))

    tokens, mask, sampling = rows("tokens"), rows("by_policy")[:, 1:], rows("log_probabilities")[:, 1:]
    real = (jnp.arange(length - 1) < jnp.array(LENGTHS)[:, None]).astype(jnp.int32)
    advantages = jnp.array([each.advantage for each in episodes])

    def loss(params):
        hidden = hidden_states(config, params, tokens[:, :-1], segments=real)
        found, _ = unembed_log_probabilities(config, params, hidden, tokens[:, 1:], TEMPERATURE)
        return policy_gradient_loss(
            found,
            sampling,
            advantages,
            mask,
            clip_low=CLIP_LOW,
            clip_high=CLIP_HIGH,
            reference_log_probabilities=reference_of(sampling),
            kl_coefficient=KL_COEFFICIENT,
        )

    (value, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert metrics["ratio/clipped_low"] > 0 and metrics["ratio/clipped_high"] > 0
    return value, gradient


def gradient_of_packed_rows(config, params, episodes):
    """As in training: several episodes a row, two micro-batches."""
    objective = PolicyGradient(clip_low=CLIP_LOW, clip_high=CLIP_HIGH, kl_coefficient=KL_COEFFICIENT)
    hidden, unembed = (functools.partial(each, config) for each in (hidden_states, unembed_log_probabilities))
    batch = pack(episodes, Layout(rows=1, row_lengths=(32,)))
    assert batch.tokens.shape[0] == 2
    batch = batch.replace(reference_log_probabilities=reference_of(batch.sampling_log_probabilities))
    gradient, value, _ = jax.jit(make_gradients(hidden, unembed, objective, TEMPERATURE))(params, batch)
    return value, gradient


def assert_same(model, folder, config, ours, theirs):
    """The losses agree, and the gradients of every parameter under the name that PyTorch has for it."""
    value, gradient = ours
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-4)
    save_hugging_face(folder, config, jax.device_get(gradient), dtype="float32")
    found = safetensors.numpy.load_file(folder / "model.safetensors")
    expected = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        assert np.linalg.norm(found[name] - exact) <= TOLERANCE * np.linalg.norm(exact), name


def test_the_gradient_of_every_parameter_in_training(models, tmp_path):
    model, config, params = models
    episodes = random_episodes(model)
    loss = gradient_in_torch(model, episodes)
    assert_same(model, tmp_path, config, gradient_of_packed_rows(config, params, episodes), loss)


def test_the_gradient_of_every_parameter_by_hand(tmp_path):
    model = saved_decoder(tmp_path / "model", "qwen3")
    config, params = load_hugging_face(tmp_path / "model")
    episodes = random_episodes(model)
    loss = gradient_in_torch(model, episodes)
    assert_same(model, tmp_path, config, gradient_of_padded_rows(config, params, episodes), loss)
