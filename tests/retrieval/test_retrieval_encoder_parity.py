"""Encoders in folders written by `transformers` give the same vectors as `transformers`; real vocabularies too."""

import json

import numpy as np
import pytest
import tokenizers
import torch
from encoder_checkpoints import SENTENCES, unigrams, vectors_of, write_checkpoint, write_json
from prepared_data import prepared
from tokenizers import models, normalizers, pre_tokenizers, processors

from lcrag.retrieval import XlmRobertaConfig, load_encoder, save_encoder

# From one token to more than there are positions, so that every bucket of rows and tokens has its turn.
TEXTS = [
    *SENTENCES,
    "",
    "a",
    " ".join(SENTENCES[:2]),
    " ".join(SENTENCES),
    *(f"{SENTENCES[number % 6]} {number}" for number in range(20)),
]


def _cosines(ours, theirs):
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    return (ours.astype(np.float64) * theirs).sum(1)


@pytest.fixture(scope="module", params=["bert", "xlm-roberta"])
def folder(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(request.param) / "model", request.param)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_transformers(folder, pooling):
    """Also of a text with padding tokens, which have their own position, and of one that needs the last position."""
    encoder = load_encoder(folder, pooling=pooling)
    padding = "<pad>" if isinstance(encoder.config, XlmRobertaConfig) else "[PAD]"
    texts = [*TEXTS, f"one {padding} two {padding}{padding} three", " ".join(SENTENCES * 2)]
    assert len(encoder.tokenize(texts[-1:], "passage")[0]) == encoder.settings.max_tokens == 64
    expected = vectors_of(folder, [f"passage: {text}" for text in texts], pooling)
    vectors = encoder.encode(texts, "passage")
    assert _cosines(vectors, expected).min() >= 0.99999
    # Alone, and in fives a text is padded to other shapes.
    for rows in (slice(1), slice(3, 8), slice(9, 10)):
        assert _cosines(encoder.encode(texts[rows], "passage"), expected[rows]).min() >= 0.99999
    # What the vectors of all texts have in common, which makes any two alike, is no evidence.
    apart = expected - expected.mean(axis=0)
    assert np.abs(vectors - expected).max() <= 1e-3 * np.abs(apart).max()


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
@pytest.mark.parametrize(
    "stored",
    [
        {"dtype": torch.bfloat16, "max_shard_size": "20KB"},
        {"dtype": torch.float16, "max_shard_size": "20KB"},
        {"head": True},
    ],
    ids=["bfloat16", "float16", "head"],
)
def test_half_precision_weights_shards_and_bodies_of_models_with_a_head_are_read(tmp_path, family, stored):
    write_checkpoint(tmp_path / "e5", family, **stored)
    assert (len(list((tmp_path / "e5").glob("*.safetensors"))) > 2) == ("max_shard_size" in stored)
    expected = vectors_of(tmp_path / "e5", [f"query: {text}" for text in TEXTS[:9]], "mean")
    assert _cosines(load_encoder(tmp_path / "e5").encode(TEXTS[:9]), expected).min() >= 0.99999


def test_a_saved_encoder_is_the_same_in_transformers(folder, tmp_path):
    encoder = load_encoder(folder, pooling="mean")
    save_encoder(tmp_path / "saved", encoder)
    prompts = json.loads((tmp_path / "saved" / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == {"query": "query: ", "passage": "passage: ", "document": "passage: "}
    np.testing.assert_allclose(
        vectors_of(folder, TEXTS, "cls"), vectors_of(tmp_path / "saved", TEXTS, "cls"), atol=1e-6
    )


def test_texts_are_put_in_lower_case_where_the_folder_says_so(tmp_path):
    write_checkpoint(tmp_path / "m", "xlm-roberta", tokenizer=unigrams())
    write_json(tmp_path / "m" / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": True})
    encoder = load_encoder(tmp_path / "m", query_prefix="", passage_prefix="")
    expected = vectors_of(tmp_path / "m", [text.lower() for text in TEXTS], "mean", max_tokens=48)
    assert _cosines(encoder.encode(TEXTS), expected).min() >= 0.99999
    save_encoder(tmp_path / "saved", encoder)
    np.testing.assert_array_equal(load_encoder(tmp_path / "saved").encode(TEXTS), encoder.encode(TEXTS))


def _multilingual_bert() -> tokenizers.Tokenizer:
    vocabulary = str(prepared("tokenizers/mbert/mbert_modified_vocab.txt"))
    tokenizer = tokenizers.Tokenizer(models.WordPiece.from_file(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = {name: tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=list(ids.items()))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def _t5() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(prepared("tokenizers/t5/tokenizer.json")))


@pytest.fixture(scope="module")
def texts():
    path = prepared("tokenizers/qwen/golden_encodings.jsonl")
    rows = list(map(json.loads, path.open(encoding="utf-8")))
    return [row["text"] for row in rows][::3]


# T5's padding is 0, so that positions count from 1.
@pytest.mark.parametrize(
    "family, make, config", [("bert", _multilingual_bert, {}), ("xlm-roberta", _t5, {"pad_token_id": 0})]
)
def test_texts_of_many_scripts(tmp_path, texts, family, make, config):
    folder = write_checkpoint(tmp_path / "model", family, tokenizer=make(), config={"num_hidden_layers": 1} | config)
    encoder = load_encoder(folder, pooling="mean", query_prefix="", passage_prefix="")
    expected = vectors_of(folder, texts, "mean")
    assert _cosines(encoder.encode(texts), expected).min() >= 0.99999
    spread = np.abs(expected - expected.mean(axis=0)).max()
    assert np.abs(encoder.encode(texts) - expected).max() <= 1e-3 * spread
