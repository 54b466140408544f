"""The decoder computes the same with remat, unrolling, sharding and, closely, in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_config

from lcrag.errors import UserError
from lcrag.policy import (
    hidden_states,
    initialise,
    logical_sharding,
    logits,
    make_mesh,
    param_shardings,
    unembed_log_probabilities,
)

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def params():
    return initialise(CONFIG, jax.random.key(0))


def tokens(rows: int, time: int):
    return jax.random.randint(jax.random.key(3), (rows, time), 0, CONFIG.vocabulary_size)


@pytest.mark.parametrize("changes", [{"remat": "dots"}, {"remat": "full"}, {"unroll_layers": True}], ids=str)
def test_memory_and_speed_switches_change_no_gradient(params, changes):
    def loss(params, config):
        hidden = hidden_states(config, params, tokens(2, 10)[:, :-1])
        return unembed_log_probabilities(config, params, hidden, tokens(2, 10)[:, 1:])[0].mean()

    plain = jax.jit(jax.grad(loss), static_argnums=1)(params, CONFIG)
    other = jax.jit(jax.grad(loss), static_argnums=1)(params, tiny_config(**changes))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), plain, other)


def test_parameters_are_born_sharded_and_compute_the_same(params):
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    sharded = initialise(CONFIG, jax.random.key(0), mesh)
    kernel = sharded["layers"]["mlp"]["up"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size
    jax.tree.map(
        lambda leaf, sharding: leaf.sharding == sharding or pytest.fail(), sharded, param_shardings(CONFIG, mesh)
    )
    rows = jax.device_put(tokens(4, 8), logical_sharding(mesh, "batch", None))
    np.testing.assert_allclose(logits(CONFIG, sharded, rows), logits(CONFIG, params, tokens(4, 8)), atol=1e-5)


def test_bfloat16_computes_close_by(params):
    wide, narrow = (logits(tiny_config(compute_dtype=dtype), params, tokens(2, 8)) for dtype in ("float32", "bfloat16"))
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(wide, narrow, atol=0.05)


def test_a_mesh_that_does_not_fit_is_one_clear_sentence():
    for changes, sizes, words in (
        ({}, {"data": 3, "tensor": 5}, "needs 15 devices, but 8"),
        ({}, {"fsdp": 0}, r"mesh\.fsdp is 0"),
        ({}, {"devices": (0, 8)}, "device 8, but there are 8"),
        ({"heads": 4, "kv_heads": 3}, {}, "divide"),
        ({"vocabulary_size": 383}, {"tensor": 2}, "tensor=2, which does not divide .* vocabulary_size of 383"),
        ({}, {"tensor": 8}, "policy's heads of 4: choose tensor among 1, 2, 4"),
        ({"width": 36}, {"fsdp": 8}, "fsdp=8, .* width of 36: choose fsdp among 1, 2, 3, 4, 6"),
    ):
        with pytest.raises(UserError, match=words):
            param_shardings(tiny_config(**changes), make_mesh(**sizes))
