"""The decoder against `transformers`, and the same with remat, unrolling, sharding and, closely, in bfloat16."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import tiny_config
from support.random_decoders import DECODERS, saved_decoder

from lcrag.errors import UserError
from lcrag.policy import (
    DecoderConfig,
    empty_cache,
    forward,
    hidden_states,
    initialise,
    load_hugging_face,
    logical_sharding,
    logits,
    make_mesh,
    param_shardings,
    unembed,
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


TOLERANCE = 1e-4  # of each token's vector of logits, in its Euclidean norm
LENGTHS = (37, 5, 18, 1)  # of the texts that are padded to one length


@pytest.fixture(scope="module", params=DECODERS)
def models(request, tmp_path_factory):
    """A random model of `transformers`, and ours as read from its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    return saved_decoder(folder, request.param), *load_hugging_face(folder)


def random_tokens(config: DecoderConfig, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, config.vocabulary_size, shape)


def expected_logits(model, tokens, **more) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens), **{name: torch.tensor(each) for name, each in more.items()}).logits.numpy()


def assert_same(found, expected):
    """Each token's logits agree, and so does its most probable next token."""
    error = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert error.max() <= TOLERANCE
    np.testing.assert_array_equal(np.argmax(found, axis=-1), np.argmax(expected, axis=-1))


@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (1, 1024)], ids=str)
def test_rows_without_padding(models, shape):
    model, config, params = models
    tokens = random_tokens(config, *shape)
    assert_same(logits(config, params, jnp.asarray(tokens)), expected_logits(model, tokens))


def test_padded_rows(models):
    """On the left and on the right, all tokens and so the last ones; what stands in the padding does not matter."""
    model, config, params = models
    right = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    real = np.concatenate([right, right[:, ::-1]])
    tokens = random_tokens(config, *real.shape)
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    found = np.asarray(logits(config, params, tokens, positions, real.astype(np.int32)))
    expected = expected_logits(model, tokens, attention_mask=real.astype(np.int64), position_ids=positions)
    assert_same(found[real], expected[real])
    other = np.where(real, tokens, (tokens + 7) % config.vocabulary_size)
    again = np.asarray(logits(config, params, other, positions, real.astype(np.int32)))
    np.testing.assert_array_equal(again[real], found[real])


def test_packed_texts_are_as_good_as_rows_of_their_own(models):
    model, config, params = models
    texts = [random_tokens(config, length) for length in LENGTHS]
    packed, positions = np.concatenate(texts)[None], np.concatenate([np.arange(length) for length in LENGTHS])[None]
    segments = np.repeat(np.arange(len(texts)), LENGTHS)[None] + 1
    found = np.asarray(logits(config, params, packed, positions, segments))[0]
    assert_same(found, np.concatenate([expected_logits(model, text[None])[0] for text in texts]))


def test_the_last_token_over_the_cache(models):
    """Texts fed piece by piece through the sampler's forward pass, from a cache with room to spare."""
    model, config, params = models
    tokens = random_tokens(config, 3, 41)
    cache, first = empty_cache(config, 3, 48), 0
    for length in (20, 20, 1):
        positions = np.broadcast_to(np.arange(first, first + length), (3, length))
        piece = jnp.asarray(tokens[:, first : first + length])
        hidden, cache = jax.jit(forward, static_argnums=0)(config, params, piece, jnp.asarray(positions), cache)
        first += length
    assert_same(unembed(config, params, hidden[:, -1]), expected_logits(model, tokens)[:, -1])


@pytest.mark.parametrize("models", ["llama"], indirect=True)
def test_the_scaled_rotation_matters(models):
    """Without it the same weights give very different logits."""
    model, config, params = models
    tokens = random_tokens(config, 1, 256)
    plain = dataclasses.replace(config, rope_scaling=None)
    expected = expected_logits(model, tokens)
    difference = np.linalg.norm(logits(plain, params, jnp.asarray(tokens)) - expected)
    assert difference > 100 * TOLERANCE * np.linalg.norm(expected)
