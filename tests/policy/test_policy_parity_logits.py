"""Logits against `transformers` on PyTorch: padding on either side, many shapes, 1,024 positions, the cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.random_decoders import DECODERS, saved_decoder

from lcrag.policy import DecoderConfig, empty_cache, forward, load_hugging_face, logits, unembed

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
