"""The critic: token rewards, value loss, value model, and PPO with the policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from learning_standin import optimizer, trajectories
from support import tiny_config
from support.random_decoders import DECODERS, saved_decoder

from lcrag.learning import Critic, Layout, pack
from lcrag.learning.critic import (
    abstract_value_parameters,
    estimate_advantages,
    split_value,
    value_config,
    value_model_of,
    value_shardings,
    values,
)
from lcrag.learning.losses import ValueRegression
from lcrag.policy import Lora, add_lora, hidden_states, initialise, load_hugging_face, make_mesh


def critic(**settings):
    return Critic(optimizer=optimizer(), **settings)


def rollout(seed=0, parts=2):
    """Two batches of unequal shapes, with everything that advantages are estimated from."""
    random = np.random.default_rng(seed)
    episodes = trajectories(seed=seed, count=11)
    for number, episode in enumerate(episodes):
        object.__setattr__(episode, "reward", number / 10)
    layouts = [Layout(rows=2 * (part + 1), row_lengths=(16, 32)) for part in range(parts)]
    batches = [pack(episodes[part::parts], layout) for part, layout in enumerate(layouts)]

    def noise(batch):
        return random.normal(0, 0.5, batch.mask.shape).astype(np.float32)

    return [
        batch.replace(values=noise(batch), reference_log_probabilities=batch.sampling_log_probabilities + noise(batch))
        for batch in batches
    ]


def trl_estimates(batches, discount, trace, kl_coefficient):
    """TRL's PPOTrainer, episode by episode without padding: {(batch, place of the episode): (advantages, returns)}."""
    found = {}
    for number, batch in enumerate(batches):
        for place in np.argwhere(batch.mask.any(axis=-1)):
            where = (*place, batch.mask[tuple(place)])
            values = torch.tensor(batch.values[where])
            log_ratio = torch.tensor(batch.reference_log_probabilities[where] - batch.sampling_log_probabilities[where])
            rewards = -kl_coefficient * -log_ratio
            rewards[-1] += torch.tensor(batch.rewards[tuple(place)])
            last, reversed_advantages = 0.0, []
            for t in reversed(range(len(values))):
                following = values[t + 1] if t < len(values) - 1 else 0.0
                delta = rewards[t] + discount * following - values[t]
                last = delta + discount * trace * last
                reversed_advantages.append(last)
            advantages = torch.stack(reversed_advantages[::-1])
            found[number, *place] = advantages, advantages + values
    everything = torch.cat([advantages for advantages, _ in found.values()])
    mean, variance = everything.mean(), everything.var(unbiased=True)
    return {key: ((a - mean) * torch.rsqrt(variance + 1e-8), r) for key, (a, r) in found.items()}, everything


def test_rewards_of_single_tokens_enter_the_returns_before_them():
    """Discount .5, trace 1: a token's return is the discounted sum of the rewards from it on."""
    [episode] = trajectories(seed=0, count=1)
    steps = np.zeros(len(episode.tokens), np.float32)
    own = np.flatnonzero(episode.by_policy)
    steps[own[1]] = 4.0
    for name, value in (("reward", 1.0), ("step_rewards", steps)):
        object.__setattr__(episode, name, value)
    batch = pack([episode], Layout(rows=1, row_lengths=(32,)))
    batch = batch.replace(values=np.zeros(batch.mask.shape, np.float32))
    [found], _ = estimate_advantages([batch], critic(discount=0.5, whiten=False))
    last = len(own) - 1
    expected = [0.5 ** (last - t) + (4 * 0.5 ** (1 - t) if t <= 1 else 0) for t in range(len(own))]
    np.testing.assert_allclose(found.returns[found.mask], expected, rtol=1e-5)


@pytest.mark.parametrize(("discount", "trace", "kl"), [(1.0, 1.0, 0.05), (0.9, 0.5, 0.0)])
def test_advantages_and_returns_of_a_rollout_are_those_of_trl(discount, trace, kl):
    batches = rollout()
    assert batches[0].mask.shape != batches[1].mask.shape
    expected, unwhitened = trl_estimates(batches, discount, trace, kl)
    found, measured = estimate_advantages(batches, critic(discount=discount, trace=trace, kl_in_reward=kl))
    for (number, *place), (advantages, returns) in expected.items():
        where = (*place, batches[number].mask[tuple(place)])
        np.testing.assert_allclose(found[number].advantages[where], advantages, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[number].returns[where], returns, rtol=1e-4, atol=1e-5)
    assert all(not np.any(batch.advantages[~batch.mask]) for batch in found)
    np.testing.assert_allclose(measured["advantage/mean"], unwhitened.mean(), atol=1e-5)
    targets = torch.cat([returns for _, returns in expected.values()])
    values = torch.cat([torch.tensor(b.values[b.mask]) for b in batches])
    explained = 1 - (targets - values).var() / targets.var()
    np.testing.assert_allclose(measured["value/explained_variance"], explained, rtol=1e-4)
    if kl:
        taken = sum((b.reference_log_probabilities - b.sampling_log_probabilities)[b.mask].sum() for b in batches)
        np.testing.assert_allclose(measured["reward/kl_penalty"], kl * taken / len(expected), rtol=1e-4)
    else:
        assert "reward/kl_penalty" not in measured


@pytest.mark.parametrize("clip", [0.2, None])
def test_the_value_loss_and_its_gradient_are_those_of_trl(clip):
    """What is outside the mask is never read: ours has NaN there."""
    random, [batch, _] = np.random.default_rng(0), rollout()
    batch = jax.tree.map(lambda leaf: leaf[0], batch)
    mask, objective = batch.mask, ValueRegression(clip)
    values, old, returns = random.normal(0, 0.4, (3, *mask.shape)).astype(np.float32)
    unread = [np.where(mask, each, np.nan) for each in (values, old, returns)]
    batch = batch.replace(values=unread[1], returns=unread[2])
    value_and_gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (loss, metrics), gradient = value_and_gradient(unread[0], batch, objective.normaliser(jnp.asarray(mask)))
    leaf = torch.tensor(values, requires_grad=True)
    old, returns, chosen = (torch.tensor(each) for each in (old, returns, mask.astype(np.float32)))
    first = second = torch.square(leaf - returns)
    if clip is not None:
        second = torch.square(torch.clamp(leaf, old - clip, old + clip) - returns)
    expected = 0.5 * (torch.max(first, second) * chosen).sum() / chosen.sum()
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad, atol=1e-6)
    np.testing.assert_allclose(metrics["value/clipped"], ((second > first) * chosen).sum() / chosen.sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["value/mean"], (leaf.detach() * chosen).sum() / chosen.sum(), rtol=1e-5)


# --- The value model ---

ALONE = make_mesh(devices=jax.devices()[:1])
states = jax.jit(hidden_states, static_argnums=0)


def with_head(trained):
    random = np.random.default_rng(0)
    head = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), trained["value_head"])
    return trained | {"value_head": head}


@pytest.mark.parametrize("name", [name for name in DECODERS if "gemma" not in name])  # which has no such head there
def test_values_are_those_of_a_scalar_head_in_transformers(name, tmp_path):
    model = saved_decoder(tmp_path, name)
    config, params = load_hugging_face(tmp_path)
    trained, frozen = value_model_of(config, params, ALONE)
    assert frozen == {}
    assert "unembedding" not in trained
    trained = with_head(trained)
    tokens = np.random.default_rng(1).integers(0, config.vocabulary_size, (3, 17))
    found = values(trained, states(value_config(config), trained, tokens))

    model.config.num_labels = 1
    critic = transformers.AutoModelForTokenClassification.from_config(model.config).eval()
    critic.model.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        critic.score.weight.copy_(torch.tensor(trained["value_head"]["kernel"].T))
        critic.score.bias.copy_(torch.tensor(trained["value_head"]["bias"]))
        expected = critic(torch.tensor(tokens)).logits[..., 0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_it_begins_as_a_copy_of_the_policy_that_values_everything_at_zero():
    config = tiny_config(tie_embeddings=False)
    params = initialise(config, jax.random.key(0))
    trained, _ = value_model_of(config, params, ALONE)
    tokens = np.ones((2, 5), np.int32)
    hidden = states(value_config(config), trained, tokens)
    np.testing.assert_array_equal(hidden, states(config, params, tokens))
    np.testing.assert_array_equal(values(trained, hidden), np.zeros((2, 5)))
    jax.tree.map(lambda leaf: leaf.delete(), trained)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_spread_over_eight_devices_by_the_policys_rules():
    config, mesh = tiny_config(compute_dtype="bfloat16"), make_mesh(2, 2, 2)
    trained, _ = value_model_of(config, initialise(config, jax.random.key(0), mesh), mesh)
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), trained)
    assert described == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract_value_parameters(config))
    assert jax.tree.map(lambda leaf: leaf.sharding, trained) == value_shardings(config, mesh)
    assert trained["value_head"]["kernel"].sharding.shard_shape((32, 1)) == (16, 1)


def test_with_adapters_the_frozen_base_is_the_policys_own():
    plain = tiny_config(tie_embeddings=False)
    base = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), initialise(plain, jax.random.key(0)))
    config, params = add_lora(plain, base, Lora(rank=2), jax.random.key(1))
    trained, frozen = value_model_of(config, params, ALONE)
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(trained["layers"])}
    assert names == {"lora_a", "lora_b"}
    assert trained.keys() == {"layers", "value_head"}
    assert frozen["embedding"] is params["embedding"]
    assert "unembedding" not in frozen
    split = split_value(config, abstract_value_parameters(config))
    assert [jax.tree.structure(each) for each in split] == [jax.tree.structure(each) for each in (trained, frozen)]
