"""Damaged, incomplete and foreign folders: one sentence that names the file or the tensor."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from lcrag.errors import UserError
from lcrag.policy import load_hugging_face
from lcrag.testing.random_decoders import saved_decoder

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A model in several shards."""
    saved_decoder(tmp_path, "llama")
    return tmp_path


def index(folder) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def rewrite(folder, change) -> None:
    """Replaces the shards by one file, its tensors changed."""
    tensors = {k: v for path in folder.glob("*.safetensors") for k, v in safetensors.torch.load_file(path).items()}
    for path in folder.glob("model*"):
        path.unlink()
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def sentence(folder) -> str:
    with pytest.raises(UserError) as caught:
        load_hugging_face(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kept", [4, 100, -100])
def test_truncated_shard(folder, kept):
    shard = folder / index(folder)[NAME]
    shard.write_bytes(shard.read_bytes()[:kept])
    assert f"{shard} cannot be read" in sentence(folder)


def test_absent_shard(folder):
    shard = folder / index(folder)[NAME]
    shard.unlink()
    assert f"model.safetensors.index.json names the file {shard.name}, which does not exist" in sentence(folder)


def test_shard_of_another_model(folder):
    shard = index(folder)[NAME]
    safetensors.torch.save_file({"something": torch.ones(2)}, folder / shard)
    assert f"says that {shard} holds the tensor" in sentence(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_damaged_index(folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in sentence(folder)


def test_missing_tensor(folder):
    rewrite(folder, lambda tensors: tensors.pop(NAME))
    assert f"tensor {NAME} is missing" in sentence(folder)


def test_extra_tensor(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}))
    assert "tensor model.layers.0.self_attn.q_proj.bias" in sentence(folder)


def test_extra_tensor_of_a_shard(folder):
    shard = folder / index(folder)[NAME]
    tensors = safetensors.torch.load_file(shard)
    safetensors.torch.save_file(tensors | {"value_head.weight": torch.ones(1)}, shard)
    assert "tensor value_head.weight" in sentence(folder)


def test_more_layers_than_stored(folder):
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    assert "tensor model.layers.3." in sentence(folder) and "is missing" in sentence(folder)


def test_wrong_shape(folder):
    rewrite(folder, lambda tensors: tensors.update({NAME: tensors[NAME].T.contiguous()}))
    assert f"tensor {NAME}" in sentence(folder) and "has shape (48, 56), but config.json asks for (56, 48)" in sentence(
        folder
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float8_e4m3fn, torch.float64])
def test_wrong_dtype(folder, dtype):
    rewrite(folder, lambda tensors: tensors.update({NAME: tensors[NAME].to(dtype)}))
    assert f"tensor {NAME}" in sentence(folder) and "which is not supported" in sentence(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [NAME, "model.embed_tokens.weight"])
def test_values_that_are_not_finite(folder, name, value):
    rewrite(folder, lambda tensors: tensors[name].view(-1)[7].fill_(value))
    assert f"tensor {name} in {folder}" in sentence(folder) and "NaN or infinite" in sentence(folder)


def test_pickles_are_never_opened(folder):
    rewrite(folder, lambda tensors: None)
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    assert "pickled weights only (pytorch_model.bin)" in sentence(folder)


def test_no_weights_and_no_model(folder, tmp_path_factory):
    rewrite(folder, lambda tensors: None)
    (folder / "model.safetensors").unlink()
    assert "no weights in" in sentence(folder)
    assert "expected the file config.json" in sentence(tmp_path_factory.mktemp("empty"))
    assert "no such folder; models are not downloaded" in sentence(tmp_path_factory.mktemp("some") / "Qwen" / "Qwen3-8B")


def test_an_empty_file_of_weights(folder):
    rewrite(folder, lambda tensors: None)
    (folder / "model.safetensors").write_bytes(np.zeros(0).tobytes())
    assert "model.safetensors cannot be read" in sentence(folder)
