"""Damaged, incomplete and foreign model folders are refused in one line that names the file or the tensor."""

import json

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


@pytest.mark.parametrize("dtype", ["float16", "int8", "no such thing"])
def test_a_dtype_that_cannot_be_trained(tmp_path, dtype):
    refused(tmp_path, dtype, "float32", dtype=dtype)


@pytest.mark.parametrize("kept", [4, 100, -100])
def test_a_truncated_shard(folder, shard, kept):
    shard.write_bytes(shard.read_bytes()[:kept])
    refused(folder, shard.name)


def test_a_shard_that_is_missing_or_of_another_model(folder, shard):
    content = safetensors.torch.load_file(shard)
    shard.unlink()
    refused(folder, INDEX, shard.name)
    safetensors.torch.save_file({"something": torch.ones(2)}, shard)
    refused(folder, INDEX, shard.name)
    safetensors.torch.save_file(content | {"value_head.weight": torch.ones(1)}, shard)
    refused(folder, "value_head.weight")


@pytest.mark.parametrize("outside", ["../{name}", "/{name}", "{name}/.."])
def test_a_shard_outside_of_the_folder(folder, shard, outside):
    index = json.loads((folder / INDEX).read_text())
    shard.rename(folder.parent / shard.name)
    named = {
        name: file.replace(shard.name, outside.format(name=shard.name)) for name, file in index["weight_map"].items()
    }
    (folder / INDEX).write_text(json.dumps(index | {"weight_map": named}))
    refused(folder, "not a file of its folder")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_a_damaged_index(folder, content):
    (folder / INDEX).write_text(content)
    refused(folder, INDEX)


def test_more_layers_than_stored(folder):
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    refused(folder, "tensor model.layers.3", "is missing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda t: {NAME: None}, (NAME, "missing")),
        (lambda t: {"model.layers.0.mlp.up_proj.bias": torch.ones(48)}, ("model.layers.0.mlp.up_proj.bias",)),
        (lambda t: {NAME: t[NAME].T.contiguous()}, (NAME, "(48, 56)", "(56, 48)")),
        *(
            (lambda t, dtype=dtype: {NAME: t[NAME].to(dtype)}, (NAME, "not supported"))
            for dtype in (torch.int8, torch.int64, torch.float8_e4m3fn, torch.float64)
        ),
        *(
            (lambda t, at=at, value=value: {at: t[at].index_fill(0, torch.tensor(7), value)}, (at, "NaN or infinite"))
            for at, value in ((NAME, float("nan")), (NAME, float("inf")), ("model.embed_tokens.weight", -float("inf")))
        ),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(folder, tensors, changes, words):
    changed = {name: value for name, value in (tensors | changes(tensors)).items() if value is not None}
    safetensors.torch.save_file(changed, folder / "model.safetensors")
    refused(folder, *words)


def test_no_weights_no_model_and_no_folder(folder, tensors, tmp_path_factory):
    refused(folder, "no weights in")
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    refused(folder, "pickled", "pytorch_model.bin")
    (folder / "model.safetensors").touch()
    refused(folder, "model.safetensors cannot be read")
    empty = tmp_path_factory.mktemp("empty")
    refused(empty, "expected the file config.json")
    refused(empty / "Qwen" / "Qwen3-8B", "no such folder; models are not downloaded")
