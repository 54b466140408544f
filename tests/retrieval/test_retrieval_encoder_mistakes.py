"""Folders that cannot be an encoder are refused in one sentence that names the tensor or the file."""

import json

import pytest
import safetensors.torch
import torch
from encoder_checkpoints import write_checkpoint

from lcrag.errors import UserError
from lcrag.retrieval import BertConfig, XlmRobertaConfig, load_encoder

QUERY = "encoder.layer.1.attention.self.query.weight"


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


def _change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_missing_tensor(folder):
    _change_tensors(folder, lambda tensors: tensors.pop(QUERY))
    _refused(folder, QUERY, "missing")


def test_an_extra_tensor(folder):
    _change_tensors(folder, lambda tensors: tensors.update({"encoder.layer.7.output.dense.bias": torch.zeros(32)}))
    _refused(folder, "encoder.layer.7.output.dense.bias")


def test_a_tensor_of_another_shape(folder):
    _change_tensors(folder, lambda tensors: tensors.update({QUERY: torch.zeros(32, 31)}))
    _refused(folder, QUERY, "(32, 31)", "(32, 32)")


def test_a_tensor_of_another_dtype(folder):
    _change_tensors(folder, lambda tensors: tensors.update({QUERY: torch.zeros(32, 32, dtype=torch.int8)}))
    _refused(folder, QUERY, "I8")


def test_a_truncated_shard(tmp_path):
    folder = write_checkpoint(tmp_path / "e5", "xlm-roberta", max_shard_size="20KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    _refused(folder, shard.name)


def test_pickled_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    _refused(folder, "pytorch_model.bin")


def test_a_missing_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    _refused(folder, "tokenizer.json", "save_pretrained")


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
    ],
)
def test_configurations_of_something_else(folder, values, part):
    _change_config(folder, **values)
    _refused(folder, part)


def test_a_configuration_without_a_size(folder):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values["hidden_size"]
    path.write_text(json.dumps(values))
    _refused(folder, "config.json", "hidden_size")


def test_a_tokenizer_of_another_model(tmp_path):
    folder = write_checkpoint(tmp_path / "e5", "bert")
    other = write_checkpoint(tmp_path / "other", "xlm-roberta")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] += [[f"extra{number}", -9.0] for number in range(900)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _refused(folder, "tokens", "embeddings")


def test_nothing_there(tmp_path):
    _refused(tmp_path / "absent", "no such folder")


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
    assert XlmRobertaConfig(**sizes, max_position_embeddings=514).longest_tokens == 512
