"""Real vocabularies in many scripts: multilingual BERT's WordPiece and T5's Unigram, as encoders' tokenizers."""

import json

import numpy as np
import pytest
import tokenizers
from encoder_checkpoints import vectors_of, write_checkpoint
from prepared_data import prepared
from tokenizers import models, normalizers, pre_tokenizers, processors

from lcrag.retrieval import load_encoder


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
    ours = encoder.encode(texts)
    assert (ours.astype(np.float64) * expected).sum(1).min() >= 0.99999
    spread = np.abs(expected - expected.mean(axis=0)).max()
    assert np.abs(ours - expected).max() <= 1e-3 * spread
