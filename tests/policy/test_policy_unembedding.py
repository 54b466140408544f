"""Log-probabilities in blocks of the vocabulary equal the plain ones, gradients included, in less memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_config

from lcrag.policy import (
    decoder,
    initialise,
    logical_sharding,
    make_mesh,
    param_shardings,
    unembed,
    unembed_log_probabilities,
)

UNTIED, TIED = tiny_config(tie_embeddings=False), tiny_config()
BATCH, TIME = 4, 10


def arguments(config, seed=0):
    """(params, hidden states, targets)."""
    keys = jax.random.split(jax.random.key(seed), 3)
    hidden = jax.random.normal(keys[1], (BATCH, TIME, config.width)).astype(config.dtype)
    targets = jax.random.randint(keys[2], (BATCH, TIME), 0, config.vocabulary_size)
    return initialise(config, keys[0]), hidden, targets


def plain(config, params, hidden, targets, temperature):
    everything = jax.nn.log_softmax(unembed(config, params, hidden) / temperature)
    entropy = -jnp.sum(jnp.exp(everything) * everything, axis=-1)
    return jnp.take_along_axis(everything, targets[..., None], -1)[..., 0], entropy


def scores(function, config, params, hidden, targets, *more):
    """The results of `function`, and the gradients of a weighted sum of the log-probabilities."""
    weights = jax.random.normal(jax.random.key(7), targets.shape)

    def loss(params, hidden):
        found = function(config, params, hidden, targets, 0.7, *more)
        return jnp.sum(weights * found[0]), found

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, found), gradients = gradient(params, hidden)
    return found, gradients


def small_blocks(monkeypatch, words_of_a_block, positions=BATCH * TIME):
    monkeypatch.setattr(decoder, "WORDS_OF_A_TILE", 1)
    monkeypatch.setattr(decoder, "MAX_LOGITS", words_of_a_block * positions)


def assert_close(found, expected, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), found, expected)


@pytest.mark.parametrize(
    ("config", "words_of_a_block"),
    [(UNTIED, 64), (UNTIED, 384), (TIED, 383)],
    ids=["untied-64", "untied-384", "tied-383"],
)
def test_blocks_equal_the_plain_log_probabilities_and_gradients(monkeypatch, config, words_of_a_block):
    example = arguments(config)
    small_blocks(monkeypatch, words_of_a_block)
    assert_close(scores(unembed_log_probabilities, config, *example), scores(plain, config, *example))


@pytest.mark.parametrize(("shape", "words_of_a_block"), [((1, 8, 1), 11), ((1, 1, 8), 11), ((2, 2, 2), 384)], ids=str)
def test_on_a_mesh_it_is_the_same(monkeypatch, shape, words_of_a_block):
    config, mesh = tiny_config(tie_embeddings=False, heads=8, kv_heads=8), make_mesh(*shape)
    params, hidden, targets = arguments(config)
    hidden, targets = jnp.tile(hidden, (2, 1, 1)), jnp.tile(targets, (2, 1))
    expected = scores(plain, config, params, hidden, targets)
    small_blocks(monkeypatch, words_of_a_block)
    params = jax.device_put(params, param_shardings(config, mesh))
    hidden = jax.device_put(hidden, logical_sharding(mesh, "batch", None, None))
    assert_close(scores(unembed_log_probabilities, config, params, hidden, targets, mesh), expected)


def compiled_gradient(config, function, batch=8, time=64, mesh=None):
    """The compiled gradient of a sum of log-probabilities with respect to table and hidden states, never run."""
    mesh = mesh or make_mesh(devices=jax.devices()[:1])

    def array(dtype, shape, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=logical_sharding(mesh, *axes))

    table = array(jnp.float32, (config.vocabulary_size, config.width), "vocabulary", "embed")
    hidden = array(config.dtype, (batch, time, config.width), "batch", None, None)
    targets = array(jnp.int32, (batch, time), "batch", None)

    def gradient(table, hidden, targets):
        loss = lambda t, h: function(config, {"embedding": t}, h, targets, 1.0)[0].sum()  # noqa: E731
        return jax.grad(loss, argnums=(0, 1))(table, hidden)

    shardings = table.sharding, hidden.sharding
    return jax.jit(gradient, out_shardings=shardings).lower(table, hidden, targets).compile()


def test_no_more_than_a_few_blocks_of_logits_are_held(monkeypatch):
    config = tiny_config(vocabulary_size=8192)
    monkeypatch.setattr(decoder, "MAX_LOGITS", 8 * 64 * 256)
    blocks, everything = (compiled_gradient(config, f).memory_analysis() for f in (unembed_log_probabilities, plain))
    logits_bytes = 8 * 64 * 8192 * 4
    assert everything.temp_size_in_bytes > 1.5 * logits_bytes
    assert blocks.temp_size_in_bytes < 0.25 * logits_bytes


def test_the_vocabulary_stays_where_it_is(monkeypatch):
    """On a mesh no device holds other devices' words or all rows' logits; what it gathers are blocks of the table."""
    config, mesh = tiny_config(vocabulary_size=8192, compute_dtype="bfloat16"), make_mesh(data=1, fsdp=2, tensor=4)
    monkeypatch.setattr(decoder, "MAX_LOGITS", 4 * 64 * 256)

    def spread(*arguments):
        return unembed_log_probabilities(*arguments, mesh=mesh)

    text = compiled_gradient(config, spread, mesh=mesh).as_text()
    shapes = {tuple(map(int, shape.split(","))) for shape in re.findall(r"= \(?\w+\[([\d,]+)\]", text)}
    assert not {shape for shape in shapes if 8192 in shape}
    assert max(np.prod(shape) for shape in shapes) <= max(2048 * config.width, 4 * 64 * 256)


def test_only_what_is_learned_costs_memory(monkeypatch):
    """Where the table is frozen, its gradient is never made."""
    monkeypatch.setattr(decoder, "MAX_LOGITS", 2 * 8 * 256)
    config = tiny_config(vocabulary_size=8192, width=64)
    params, targets = {"embedding": jnp.zeros((8192, 64))}, jnp.zeros((2, 8), jnp.int32)
    loss = lambda hidden: unembed_log_probabilities(config, params, hidden, targets)[0].sum()  # noqa: E731
    frozen = jax.jit(jax.grad(loss)).lower(jnp.zeros((2, 8, 64))).compile()
    assert frozen.memory_analysis().temp_size_in_bytes < 8192 * 64 * 4


@pytest.mark.parametrize("words_of_a_block, products", [(384, 3), (128, 4)], ids=["kept", "blocks"])
def test_logits_that_fit_a_block_are_computed_once(monkeypatch, words_of_a_block, products):
    small_blocks(monkeypatch, words_of_a_block, positions=8 * 64)
    text = compiled_gradient(TIED, unembed_log_probabilities).as_text()
    assert text.count(" dot(") == products


def test_bfloat16_computes_close_by():
    params, hidden, targets = arguments(UNTIED)

    def table_gradient(dtype):
        config = tiny_config(tie_embeddings=False, compute_dtype=dtype)
        _, (gradients, _) = scores(unembed_log_probabilities, config, params, hidden.astype(dtype), targets)
        return gradients["unembedding"]

    exact, close = table_gradient("float32"), table_gradient("bfloat16")
    assert close.dtype == jnp.float32
    np.testing.assert_allclose(close, exact, atol=0.02 * float(jnp.abs(exact).max()))
