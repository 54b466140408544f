"""Damaged or unsupported encoder folders raise one sentence that names the tensor or the file."""

import json

import pytest
import safetensors.torch
import torch
from encoder_checkpoints import write_checkpoint

from lcrag.errors import UserError
from lcrag.retrieval import BertConfig, XlmRobertaConfig, load_encoder

QUERY = "encoder.layer.1.attention.self.query.weight"
EXTRA = "encoder.layer.7.output.dense.bias"


@pytest.fixture(params=["bert", "xlm-roberta"])
def folder(request, tmp_path):
    return write_checkpoint(tmp_path / "e5", request.param)


def _refused(folder, *parts):
    with pytest.raises(UserError) as caught:
        load_encoder(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def _change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda tensors: tensors.pop(QUERY), (QUERY, "missing")),
        (lambda tensors: tensors.update({EXTRA: torch.zeros(32)}), (EXTRA,)),
        (lambda tensors: tensors.update({QUERY: torch.zeros(32, 31)}), (QUERY, "(32, 31)", "(32, 32)")),
        (lambda tensors: tensors.update({QUERY: torch.zeros(32, 32, dtype=torch.int8)}), (QUERY, "I8")),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_wrong_tensors(folder, change, parts):
    _change_tensors(folder, change)
    _refused(folder, *parts)


def test_missing_files(folder):
    (folder / "tokenizer.json").rename(folder / "tokenizer")
    _refused(folder, "tokenizer.json", "save_pretrained")
    (folder / "tokenizer").rename(folder / "tokenizer.json")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    _refused(folder, "pytorch_model.bin")
    _refused(folder / "absent", "no such folder")


def _change_config(folder, **values):
    path = folder / "config.json"
    changed = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not ...}))


@pytest.mark.parametrize(
    "values, part",
    [
        ({"model_type": "distilbert"}, "'distilbert'"),
        ({"model_type": None}, "None"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "swish"}, "'swish'"),
        ({"hidden_size": 31}, "hidden_size 31"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers is 'three'"),
        ({"vocab_size": 5}, "embeddings.word_embeddings.weight"),
        ({"num_hidden_layers": 2}, "encoder.layer.2."),
        ({"num_hidden_layers": 4}, "encoder.layer.3."),
        ({"hidden_size": ...}, "hidden_size"),  # absent
    ],
)
def test_configurations_of_something_else(folder, values, part):
    _change_config(folder, **values)
    _refused(folder, part)


def test_a_tokenizer_of_another_model(tmp_path):
    folder = write_checkpoint(tmp_path / "e5", "bert")
    other = write_checkpoint(tmp_path / "other", "xlm-roberta")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] += [[f"extra{number}", -9.0] for number in range(900)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _refused(folder, "tokens", "embeddings")


def test_impossible_sizes():
    sizes = {
        "vocab_size": 9,
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 4,
    }
    with pytest.raises(UserError, match="no position"):
        XlmRobertaConfig(**sizes, max_position_embeddings=2)
    with pytest.raises(UserError, match="type_vocab_size is 0"):
        BertConfig(**sizes, type_vocab_size=0)
    with pytest.raises(UserError, match="multiple"):
        BertConfig(**sizes | {"hidden_size": 10})
    assert XlmRobertaConfig(**sizes, max_position_embeddings=514).longest_tokens == 512
