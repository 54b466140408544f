"""Encoding: batches, padding, prefixes, and saved folders."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_tokenizer

from lcrag.errors import UserError
from lcrag.retrieval import EncoderSettings, initialise_encoder, load_encoder, save_encoder
from lcrag.retrieval.encoder import _compiled_embed, embed, pad_rows

TEXTS = ["", "a", "Какая валюта?", "日本の通貨は 円 です。" * 3, "word " * 100, "naïve 🙂", "กรุงเทพ"] * 3


def test_a_vector_depends_on_its_text_alone(encoder):
    together = encoder.encode(TEXTS, "query")
    alone = np.concatenate([encoder.encode([text], "query") for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert together.dtype == np.float32
    assert together.shape == (len(TEXTS), encoder.dimension)
    assert encoder.encode([]).shape == (0, encoder.dimension)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_has_no_effect(encoder, pooling):
    rows = encoder.tokenize(TEXTS, "query")
    tokens, lengths = map(jnp.asarray, pad_rows(rows, (len(rows), 32)))
    noise = jax.random.randint(jax.random.key(0), tokens.shape, 0, 384)
    noisy = jnp.where(jnp.arange(32) < lengths[:, None], tokens, noise)
    compiled = jax.jit(embed, static_argnums=(0, 1))
    clean, disturbed = (compiled(encoder.config, pooling, encoder.params, each, lengths) for each in (tokens, noisy))
    np.testing.assert_allclose(clean, disturbed, atol=1e-6)


def test_kinds_have_their_prefixes(encoder):
    assert encoder.tokenizer.decode(encoder.tokenize(["x y"], "query")[0]) == "query: x y"
    assert encoder.tokenizer.decode(encoder.tokenize(["x y"], "passage")[0]) == "passage: x y"
    with pytest.raises(UserError, match="'document'"):
        encoder.encode(["x"], "document")


def test_long_texts_are_cut_and_before_they_are_tokenized(encoder, monkeypatch):
    """Tokenizing millions of characters takes seconds."""
    sizes = []
    tokenizer = encoder.tokenizer
    recorder = types.SimpleNamespace(
        encode_batch_fast=lambda texts: sizes.extend(map(len, texts)) or tokenizer.encode_batch_fast(texts)
    )
    monkeypatch.setattr(encoder, "tokenizer", recorder)
    [tokens] = encoder.tokenize(["word " * 100_000], "query")
    assert sizes == [len("query: ") + 32 * 32]
    assert tokens == tokenizer.encode("query: " + "word " * 100).ids
    assert len(tokens) == 32


def test_an_empty_text_without_prefix_has_a_vector(config):
    settings = EncoderSettings(query_prefix="", max_tokens=32)
    vectors = initialise_encoder(config, settings, tiny_tokenizer().backend).encode([""], "query")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_shapes_are_finite(encoder):
    before = _compiled_embed._cache_size()
    for count in range(1, 40):
        encoder.encode([f"text {'longer ' * (number % 9)}" for number in range(count)], "query")
    assert _compiled_embed._cache_size() - before <= 2 * 3  # token buckets 16, 32; row buckets 4, 16, 64


def test_encoding_makes_no_implicit_transfer(encoder):
    with jax.transfer_guard("disallow"):
        encoder.encode(TEXTS, "query")


@pytest.mark.parametrize("dtype, tolerance", [("float32", 0), ("float16", 5e-3), ("bfloat16", 3e-2)])
def test_round_trip(encoder, tmp_path, dtype, tolerance):
    save_encoder(tmp_path / "e", encoder, dtype)
    loaded = load_encoder(tmp_path / "e")
    np.testing.assert_allclose(loaded.encode(TEXTS), encoder.encode(TEXTS), atol=tolerance + 1e-7)
    assert (loaded.fingerprint() == encoder.fingerprint()) == (dtype == "float32")
    assert loaded.settings == encoder.settings
    assert loaded.config == encoder.config
    save_encoder(tmp_path / "again", loaded)
    assert load_encoder(tmp_path / "again").fingerprint() == loaded.fingerprint()


def test_fingerprint_covers_the_settings(config, encoder):
    other = initialise_encoder(config, EncoderSettings(max_tokens=32, pooling="cls"), tiny_tokenizer().backend)
    assert other.fingerprint() != encoder.fingerprint()


@pytest.mark.parametrize(
    "name, damage",
    [
        *itertools.product(
            ("config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"), ("missing", "truncated")
        ),
        ("modules.json", "truncated"),
        ("sentence_bert_config.json", "truncated"),
        ("config_sentence_transformers.json", "truncated"),
    ],
)
def test_damaged_folders_are_named(encoder, tmp_path, name, damage):
    save_encoder(tmp_path / "e", encoder)
    path = tmp_path / "e" / name
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=name):
        load_encoder(tmp_path / "e")
