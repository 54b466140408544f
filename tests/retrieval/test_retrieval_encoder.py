"""The encoder is BERT, whatever stands beside a text in its batch."""

import concurrent.futures
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lcrag.errors import UserError
from lcrag.retrieval import BertConfig, Encoder, EncoderSettings, initialise_encoder, load_encoder, save_encoder
from lcrag.retrieval.bert import Bert
from lcrag.retrieval.encoder import _compiled_embed, embed, pad_rows
from lcrag.testing import tiny_tokenizer

TEXTS = ["", "a", "Какая валюта?", "日本の通貨は 円 です。" * 3, "word " * 100, "naïve 🙂", "กรุงเทพ"] * 3


def _randomised(encoder):
    """Random norms and biases too, so that no tensor can be swapped unnoticed."""
    leaves, structure = jax.tree.flatten(encoder.params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    leaves = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return Encoder(encoder.config, encoder.settings, structure.unflatten(leaves), encoder.tokenizer)


def test_saved_folder_is_a_genuine_bert(encoder, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    encoder = _randomised(encoder)
    save_encoder(tmp_path / "e", encoder)
    model, loading = transformers.BertModel.from_pretrained(
        tmp_path / "e", add_pooling_layer=False, output_loading_info=True, attn_implementation="eager"
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    tokens, lengths = pad_rows(encoder.tokenize(TEXTS, "passage"), (len(TEXTS), 32))
    mask = np.arange(32) < lengths[:, None]
    with torch.no_grad():
        theirs = model.eval()(torch.tensor(tokens), torch.tensor(mask)).last_hidden_state.numpy()
    ours = Bert(encoder.config).apply({"params": encoder.params}, jnp.asarray(tokens), jnp.asarray(mask))
    np.testing.assert_allclose(ours[mask], theirs[mask], atol=2e-5)
    pooled = (theirs * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    cosine = (encoder.encode(TEXTS, "passage") * pooled).sum(1)
    assert cosine.min() >= 0.99999
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "e")
    assert fast("passage: " + TEXTS[2])["input_ids"] == encoder.tokenize(TEXTS[2:3], "passage")[0]


def test_a_vector_depends_on_its_text_alone(encoder):
    together = encoder.encode(TEXTS, "query")
    alone = np.concatenate([encoder.encode([text], "query") for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert together.dtype == np.float32 and together.shape == (len(TEXTS), encoder.dimension)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_has_no_effect(encoder, pooling):
    rows = encoder.tokenize(TEXTS, "query")
    tokens, lengths = map(jnp.asarray, pad_rows(rows, (len(rows), 32)))
    noise = jax.random.randint(jax.random.key(0), tokens.shape, 0, 384)
    noisy = jnp.where(jnp.arange(32) < lengths[:, None], tokens, noise)
    clean, disturbed = (embed(encoder.config, pooling, encoder.params, each, lengths) for each in (tokens, noisy))
    np.testing.assert_allclose(clean, disturbed, atol=1e-6)


def test_poolings_differ_as_they_say(config):
    encoder = initialise_encoder(config, EncoderSettings(pooling="cls", max_tokens=32), tiny_tokenizer().backend)
    tokens = jnp.asarray(encoder.tokenize(["some text"], "query"))
    hidden = Bert(config).apply({"params": encoder.params}, tokens, jnp.ones(tokens.shape, bool))[0]
    expected = hidden[0] / np.linalg.norm(hidden[0])
    np.testing.assert_allclose(encoder.encode(["some text"], "query")[0], expected, atol=1e-5)


def test_kinds_have_their_prefixes(encoder):
    assert encoder.tokenizer.decode(encoder.tokenize(["x y"], "query")[0]) == "query: x y"
    assert encoder.tokenizer.decode(encoder.tokenize(["x y"], "passage")[0]) == "passage: x y"
    with pytest.raises(UserError, match="'document'"):
        encoder.encode(["x"], "document")


def test_long_texts_are_cut(encoder):
    longest = "word " * 100
    assert len(encoder.tokenize([longest], "query")[0]) == 32
    np.testing.assert_allclose(encoder.encode([longest]), encoder.encode([longest + "more"]), atol=1e-6)


def test_an_empty_text_without_prefix_has_a_vector(config):
    settings = EncoderSettings(query_prefix="", max_tokens=32)
    vectors = initialise_encoder(config, settings, tiny_tokenizer().backend).encode([""], "query")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_nothing_to_encode(encoder):
    assert encoder.encode([]).shape == (0, encoder.dimension)


def test_shapes_are_finite(encoder):
    before = _compiled_embed._cache_size()
    for count in range(1, 40):
        encoder.encode([f"text {'longer ' * (number % 9)}" for number in range(count)], "query")
    assert _compiled_embed._cache_size() - before <= 2 * 3  # token buckets 16, 32; row buckets 4, 16, 64


def test_threads_share_an_encoder(encoder):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda text: encoder.encode([text])[0], TEXTS))
    np.testing.assert_allclose(results, encoder.encode(TEXTS), atol=1e-5)


def test_encoding_makes_no_implicit_transfer(encoder):
    with jax.transfer_guard("disallow"):
        encoder.encode(TEXTS, "query")


@pytest.mark.parametrize("dtype, tolerance", [("float32", 0), ("float16", 5e-3), ("bfloat16", 3e-2)])
def test_round_trip(encoder, tmp_path, dtype, tolerance):
    save_encoder(tmp_path / "e", encoder, dtype)
    loaded = load_encoder(tmp_path / "e")
    np.testing.assert_allclose(loaded.encode(TEXTS), encoder.encode(TEXTS), atol=tolerance + 1e-7)
    assert (loaded.fingerprint() == encoder.fingerprint()) == (dtype == "float32")
    assert loaded.settings == encoder.settings and loaded.config == encoder.config
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


def test_weights_of_another_size_are_refused(encoder, tmp_path):
    save_encoder(tmp_path / "e", encoder)
    path = tmp_path / "e" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 32}))
    with pytest.raises(UserError, match="intermediate.dense.weight"):
        load_encoder(tmp_path / "e")


def test_impossible_sizes_are_refused(config):
    with pytest.raises(UserError, match="positions"):
        initialise_encoder(config, EncoderSettings(max_tokens=64), tiny_tokenizer().backend)
    with pytest.raises(UserError, match="multiple"):
        BertConfig(vocab_size=9, hidden_size=10, num_hidden_layers=1, num_attention_heads=3, intermediate_size=4)
