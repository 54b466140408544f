"""The value model against `transformers` with a scalar head, on one device and eight, with and without adapters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from support import tiny_config
from support.random_decoders import DECODERS, saved_decoder

from lcrag.learning.critic import (
    abstract_value_parameters,
    split_value,
    value_config,
    value_model_of,
    value_shardings,
    values,
)
from lcrag.policy import Lora, add_lora, hidden_states, initialise, load_hugging_face, make_mesh

ALONE = make_mesh(devices=jax.devices()[:1])
states = jax.jit(hidden_states, static_argnums=0)


def with_head(trained):
    """Replaces the head by a random one."""
    random = np.random.default_rng(0)
    head = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), trained["value_head"])
    return trained | {"value_head": head}


@pytest.mark.parametrize("name", DECODERS)
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

    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 384, (8, 9)))
    body = functools.partial(hidden_states, value_config(config))
    spread = jax.jit(lambda params, tokens: values(params, body(params, tokens, mesh=mesh)))
    scored = jax.device_put(with_head(trained), value_shardings(config, mesh))
    here = jax.device_put(scored, jax.devices()[0])
    expected = values(here, states(value_config(config), here, tokens))
    found = spread(scored, tokens)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.1)


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
