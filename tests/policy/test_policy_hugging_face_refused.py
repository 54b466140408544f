"""Damaged, incomplete and foreign model folders are refused in one line that names the file or the tensor."""

import json
import shutil

import pytest
import safetensors.torch
import torch
from support.random_decoders import saved_decoder

from lcrag.errors import UserError
from lcrag.policy import load_hugging_face

NAME = "model.layers.1.mlp.up_proj.weight"
INDEX = "model.safetensors.index.json"


def refused(folder, *words: str, **options) -> None:
    with pytest.raises(UserError) as caught:
        load_hugging_face(folder, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model in several shards."""
    folder = tmp_path_factory.mktemp("saved")
    saved_decoder(folder, "llama")
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


@pytest.fixture
def tensors(folder):
    """The tensors of the model, to be changed and written as a single file."""
    tensors = {k: v for path in folder.glob("*.safetensors") for k, v in safetensors.torch.load_file(path).items()}
    for path in folder.glob("model*"):
        path.unlink()
    return tensors


def test_damaged_shards_and_indices(folder):
    index = json.loads((folder / INDEX).read_text())
    shard = folder / index["weight_map"][NAME]
    content, held = shard.read_bytes(), safetensors.torch.load_file(shard)
    for kept in (4, 100, -100):
        shard.write_bytes(content[:kept])
        refused(folder, shard.name)
    safetensors.torch.save_file({"something": torch.ones(2)}, shard)
    refused(folder, INDEX, shard.name)
    safetensors.torch.save_file(held | {"value_head.weight": torch.ones(1)}, shard)
    refused(folder, "value_head.weight")
    shard.rename(folder.parent / shard.name)
    refused(folder, INDEX, shard.name)
    for outside in (f"../{shard.name}", f"/{shard.name}", f"{shard.name}/.."):
        moved = {name: outside if file == shard.name else file for name, file in index["weight_map"].items()}
        (folder / INDEX).write_text(json.dumps(index | {"weight_map": moved}))
        refused(folder, "not a file of its folder")
    for text in ("{", "[]", "{}", '{"weight_map": {"a": 1}}'):
        (folder / INDEX).write_text(text)
        refused(folder, INDEX)


def test_tensors_that_do_not_fit(folder, tensors):
    def changed(name, change):
        return tensors | {name: change(tensors[name])}

    def poisoned(value):
        return lambda tensor: tensor.index_fill(0, torch.tensor(7), value)

    embedding, bias = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.bias"
    for given, words in (
        ({name: tensor for name, tensor in tensors.items() if name != NAME}, (NAME, "missing")),
        (tensors | {bias: torch.ones(48)}, (bias,)),
        (changed(NAME, lambda tensor: tensor.T.contiguous()), (NAME, "(48, 56)", "(56, 48)")),
        (changed(NAME, lambda tensor: tensor.to(torch.int8)), (NAME, "not supported")),
        (changed(NAME, lambda tensor: tensor.to(torch.float64)), (NAME, "not supported")),
        (changed(NAME, poisoned(float("nan"))), (NAME, "NaN or infinite")),
        (changed(embedding, poisoned(-float("inf"))), (embedding, "NaN or infinite")),
    ):
        safetensors.torch.save_file(given, folder / "model.safetensors")
        refused(folder, *words)
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    refused(folder, "tensor model.layers.3", "is missing")
    refused(folder, "int8", "float32", dtype="int8")
    refused(folder, "no such thing", "float32", dtype="no such thing")


def test_no_weights_no_model_and_no_folder(folder, tensors, tmp_path_factory):
    refused(folder, "no weights in")
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    refused(folder, "pickled", "pytorch_model.bin")
    (folder / "model.safetensors").touch()
    refused(folder, "model.safetensors cannot be read")
    empty = tmp_path_factory.mktemp("empty")
    refused(empty, "expected the file config.json")
    refused(empty / "Qwen" / "Qwen3-8B", "no such folder; models are not downloaded")
