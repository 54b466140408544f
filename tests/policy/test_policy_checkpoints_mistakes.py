"""Damaged, incomplete and foreign model folders are refused in one sentence that names the file or the tensor."""

import json
import re

import pytest
import safetensors.torch
import torch
from support.random_decoders import saved_decoder

from lcrag.errors import UserError
from lcrag.policy import load_hugging_face

NAME = "model.layers.1.mlp.up_proj.weight"
INDEX = "model.safetensors.index.json"


def refused(folder, *sentences: str) -> None:
    with pytest.raises(UserError) as caught:
        load_hugging_face(folder)
    assert "\n" not in str(caught.value)
    for sentence in sentences:
        assert re.search(sentence, str(caught.value)), str(caught.value)


@pytest.fixture
def folder(tmp_path):
    """A model in several shards."""
    saved_decoder(tmp_path, "llama")
    return tmp_path


@pytest.fixture
def shard(folder):
    """The shard that holds `NAME`."""
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][NAME]


@pytest.fixture
def tensors(folder):
    """The tensors of the model, to be changed and written as a single file."""
    tensors = {k: v for path in folder.glob("*.safetensors") for k, v in safetensors.torch.load_file(path).items()}
    for path in folder.glob("model*"):
        path.unlink()
    return tensors


@pytest.mark.parametrize("kept", [4, 100, -100])
def test_a_truncated_shard(folder, shard, kept):
    shard.write_bytes(shard.read_bytes()[:kept])
    refused(folder, f"{shard.name} cannot be read")


def test_a_missing_shard(folder, shard):
    shard.unlink()
    refused(folder, f"{INDEX} names the file {shard.name}, which does not exist")


def test_a_shard_of_another_model(folder, shard):
    safetensors.torch.save_file({"something": torch.ones(2)}, shard)
    refused(folder, f"says that {shard.name} holds the tensor")


def test_a_tensor_that_the_index_does_not_name(folder, shard):
    safetensors.torch.save_file(safetensors.torch.load_file(shard) | {"value_head.weight": torch.ones(1)}, shard)
    refused(folder, "tensor value_head.weight")


@pytest.mark.parametrize("outside", ["../{name}", "/{name}", "{name}/.."])
def test_a_shard_outside_of_the_folder(folder, shard, outside):
    index = json.loads((folder / INDEX).read_text())
    shard.rename(folder.parent / shard.name)
    named = {
        name: file.replace(shard.name, outside.format(name=shard.name)) for name, file in index["weight_map"].items()
    }
    (folder / INDEX).write_text(json.dumps(index | {"weight_map": named}))
    refused(folder, "which is not a file of its folder")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_a_damaged_index(folder, content):
    (folder / INDEX).write_text(content)
    refused(folder, INDEX)


def test_more_layers_than_stored(folder):
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    refused(folder, r"tensor model.layers.3.*is missing")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (lambda t: {NAME: None}, f"tensor {NAME} is missing"),
        (lambda t: {"model.layers.0.mlp.up_proj.bias": torch.ones(48)}, "tensor model.layers.0.mlp.up_proj.bias"),
        (lambda t: {NAME: t[NAME].T.contiguous()}, rf"tensor {NAME} .*has shape \(48, 56\), .* asks for \(56, 48\)"),
        *(
            (lambda t, dtype=dtype: {NAME: t[NAME].to(dtype)}, f"tensor {NAME} .*which is not supported")
            for dtype in (torch.int8, torch.int64, torch.float8_e4m3fn, torch.float64)
        ),
        *(
            (lambda t, at=at, value=value: {at: t[at].index_fill(0, torch.tensor(7), value)}, f"{at} .*NaN or infinite")
            for at, value in ((NAME, float("nan")), (NAME, float("inf")), ("model.embed_tokens.weight", -float("inf")))
        ),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(folder, tensors, changes, sentence):
    changed = {name: value for name, value in (tensors | changes(tensors)).items() if value is not None}
    safetensors.torch.save_file(changed, folder / "model.safetensors")
    refused(folder, sentence)


def test_no_weights_no_model_and_no_folder(folder, tensors, tmp_path_factory):
    refused(folder, "no weights in")
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    refused(folder, r"pickled weights only \(pytorch_model.bin\)")
    (folder / "model.safetensors").touch()
    refused(folder, "model.safetensors cannot be read")
    empty = tmp_path_factory.mktemp("empty")
    refused(empty, "expected the file config.json")
    refused(empty / "Qwen" / "Qwen3-8B", "no such folder; models are not downloaded")
