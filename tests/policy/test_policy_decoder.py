"""The decoder against `transformers`, and the same with remat, unrolling, sharding and blocks of the vocabulary."""

import re

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
    decoder,
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


@pytest.mark.parametrize("changes", [{"remat": "dots"}, {"remat": "full", "unroll_layers": False}], ids=str)
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
        ({}, {"data": 3, "tensor": 5}, r"needs 15 devices, but 8.*lcrag\[cuda\]"),
        ({}, {"fsdp": 0}, r"mesh\.fsdp is 0"),
        ({}, {"devices": (0, 8)}, "device 8, but there are 8"),
        ({}, {"devices": (0, 0)}, "each device once"),
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


def test_rows_without_padding(models):
    model, config, params = models
    tokens = random_tokens(config, 1, 1024)
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


# --- Log-probabilities in blocks of the vocabulary ---

UNTIED, TIED = tiny_config(tie_embeddings=False), tiny_config()
BATCH, TIME = 4, 10


def scored(config, seed=0):
    """(params, hidden states, targets)."""
    keys = jax.random.split(jax.random.key(seed), 3)
    hidden = jax.random.normal(keys[1], (BATCH, TIME, config.width)).astype(config.dtype)
    targets = jax.random.randint(keys[2], (BATCH, TIME), 0, config.vocabulary_size)
    return initialise(config, keys[0]), hidden, targets


def plain_scores(config, params, hidden, targets, temperature):
    everything = jax.nn.log_softmax(unembed(config, params, hidden) / temperature)
    entropy = -jnp.sum(jnp.exp(everything) * everything, axis=-1)
    return jnp.take_along_axis(everything, targets[..., None], -1)[..., 0], entropy


def scores(function, config, params, hidden, targets, *more, entropy=0.0):
    """The results of `function`, and the gradients of a weighted sum of the log-probabilities and entropies."""
    weights = jax.random.normal(jax.random.key(7), targets.shape)

    def loss(params, hidden):
        found = function(config, params, hidden, targets, 0.7, *more)
        return jnp.sum(weights * found[0]) + (entropy and jnp.sum(entropy * weights**2 * found[1])), found

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, found), gradients = gradient(params, hidden)
    return found, gradients


def small_blocks(monkeypatch, words_of_a_block, positions=BATCH * TIME):
    monkeypatch.setattr(decoder, "WORDS_OF_A_TILE", 1)
    monkeypatch.setattr(decoder, "MAX_LOGITS", words_of_a_block * positions)


def assert_all_close(found, expected, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), found, expected)


@pytest.mark.parametrize(
    ("config", "words_of_a_block"),
    [(UNTIED, 64), (UNTIED, 384), (TIED, 383)],
    ids=["untied-64", "untied-384", "tied-383"],
)
def test_blocks_equal_the_plain_log_probabilities_and_gradients(monkeypatch, config, words_of_a_block):
    example = scored(config)
    small_blocks(monkeypatch, words_of_a_block)
    for entropy in (0.0, 0.3):
        expected = scores(plain_scores, config, *example, entropy=entropy)
        assert_all_close(scores(unembed_log_probabilities, config, *example, entropy=entropy), expected)


@pytest.mark.parametrize(("shape", "words_of_a_block"), [((1, 8, 1), 11), ((1, 1, 8), 11), ((2, 2, 2), 384)], ids=str)
def test_on_a_mesh_it_is_the_same(monkeypatch, shape, words_of_a_block):
    config, mesh = tiny_config(tie_embeddings=False, heads=8, kv_heads=8), make_mesh(*shape)
    params, hidden, targets = scored(config)
    hidden, targets = jnp.tile(hidden, (2, 1, 1)), jnp.tile(targets, (2, 1))
    expected = scores(plain_scores, config, params, hidden, targets, entropy=0.3)
    small_blocks(monkeypatch, words_of_a_block)
    params = jax.device_put(params, param_shardings(config, mesh))
    hidden = jax.device_put(hidden, logical_sharding(mesh, "batch", None, None))
    found = scores(unembed_log_probabilities, config, params, hidden, targets, mesh, entropy=0.3)
    assert_all_close(found, expected)


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
    blocks, everything = (
        compiled_gradient(config, f).memory_analysis() for f in (unembed_log_probabilities, plain_scores)
    )
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


def test_bfloat16_scores_come_close():
    params, hidden, targets = scored(UNTIED)

    def table_gradient(dtype):
        config = tiny_config(tie_embeddings=False, compute_dtype=dtype)
        _, (gradients, _) = scores(unembed_log_probabilities, config, params, hidden.astype(dtype), targets)
        return gradients["unembedding"]

    exact, close = table_gradient("float32"), table_gradient("bfloat16")
    assert close.dtype == jnp.float32
    np.testing.assert_allclose(close, exact, atol=0.02 * float(jnp.abs(exact).max()))
