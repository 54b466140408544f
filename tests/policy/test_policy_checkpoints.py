"""Folders that `transformers` wrote, in several shards, read onto every kind of mesh and by several processes."""

import json
import math
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
from support.random_decoders import DECODERS, random_decoder, saved_decoder

import lcrag.policy.stored_parameters as stored_parameters_module
from lcrag.errors import UserError
from lcrag.policy import load_hugging_face, make_mesh, param_shardings
from lcrag.policy.model_files import TensorFolder
from lcrag.policy.stored_parameters import flat_parameters, row_pieces, stored_parameters

MESHES = {
    "one axis": {"data": 1, "fsdp": 8},
    "two axes": {"data": 1, "fsdp": 4, "tensor": 2},
    "three axes, replicated twice": {"data": 2, "fsdp": 2, "tensor": 2},
}
DIVISIBLE = {"vocab_size": 384, "num_key_value_heads": 2}
# Small enough that every matrix is cut, with a last piece that begins inside the one before.
SMALL_PIECE = 4000


@pytest.fixture(scope="module", params=DECODERS)
def model(request, tmp_path_factory):
    """A model of `transformers`, and the folder that it was written to."""
    folder = tmp_path_factory.mktemp(request.param)
    return saved_decoder(folder, request.param, **DIVISIBLE), folder


def expected_parameters(model, config) -> dict[str, np.ndarray]:
    """Our parameters by path, made from PyTorch's, one line a rule."""
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    layers: dict[str, list[np.ndarray]] = {}
    for stored in stored_parameters(config):
        value = state[stored.name]
        layers.setdefault(stored.path, []).append(value.T if stored.path.endswith("kernel") else value)
    return {path: np.stack(each) if path.startswith("layers/") else each[0] for path, each in layers.items()}


def assert_equal(params, expected: dict[str, np.ndarray]):
    found = flat_parameters(params)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(np.asarray(found[path]), value, err_msg=path)


def test_shards_are_read_as_they_are(model):
    torch_model, folder = model
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    config, params = load_hugging_face(folder)
    assert_equal(params, expected_parameters(torch_model, config))


@pytest.mark.parametrize("model", ["qwen2_untied", "qwen3"], indirect=True)
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_every_mesh_gets_the_same_values_and_reads_them_once(model, axes, monkeypatch):
    torch_model, folder = model
    monkeypatch.setattr(stored_parameters_module, "PIECE_BYTES", SMALL_PIECE)
    sizes: list[int] = []
    read = TensorFolder.read

    def counted(self, name, index=()):
        part = read(self, name, index)
        sizes.append(part.size)
        return part

    monkeypatch.setattr(TensorFolder, "read", counted)
    mesh = make_mesh(**axes)
    config, params = load_hugging_face(folder, mesh=mesh)
    expected = expected_parameters(torch_model, config)
    assert_equal(params, expected)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == param_shardings(config, mesh)
    total = sum(value.size for value in expected.values())
    assert total <= sum(sizes) < 1.5 * total  # overlapping last pieces, no replicas
    rows_of_embedding = config.vocabulary_size // axes.get("tensor", 1)
    assert max(sizes) < rows_of_embedding * config.width / 2


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", ["float32", jnp.bfloat16])
def test_dtypes_are_cast_as_pytorch_casts_them(tmp_path, stored, dtype):
    model = random_decoder("qwen3").to(stored)
    model.save_pretrained(tmp_path)
    config, params = load_hugging_face(tmp_path, dtype=dtype)
    wide = model.to(torch.bfloat16).float() if dtype == jnp.bfloat16 else model.float()
    expected = expected_parameters(wide, config)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    assert_equal(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), expected)


@pytest.mark.parametrize("dtype", ["float16", "int8", "no such thing"])
def test_parameters_have_a_dtype_that_can_be_trained(tmp_path, dtype):
    with pytest.raises(UserError, match="float32"):
        load_hugging_face(tmp_path, dtype=dtype)


def test_an_embedding_stored_twice_is_read_if_both_are_the_same(tmp_path):
    model = saved_decoder(tmp_path, "qwen3")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for path in tmp_path.glob("model*"):
        path.unlink()
    assert "lm_head.weight" in state
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(10)  # old Llama folders have such buffers
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    config, params = load_hugging_face(tmp_path)
    assert_equal(params, expected_parameters(model, config))
    state["lm_head.weight"][-1, -1] += 1
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="lm_head.weight .*differs .*set tie_word_embeddings to false"):
        load_hugging_face(tmp_path)


def test_the_single_file_is_taken_where_an_index_lies_beside_it(tmp_path):
    model = saved_decoder(tmp_path, "llama")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
    config, params = load_hugging_face(tmp_path)
    assert_equal(params, expected_parameters(model, config))


@pytest.mark.parametrize("rows", [1, 7, 8, 1000])
@pytest.mark.parametrize("row_bytes", [1, 2**23, 2**30])
def test_pieces_cover_all_rows_in_order(rows, row_bytes):
    size, firsts = row_pieces(rows, row_bytes)
    assert size == 1 or size * row_bytes <= stored_parameters_module.PIECE_BYTES
    covered = [row for first in firsts for row in range(first, first + size)]
    assert sorted(set(covered)) == list(range(rows))
    assert len(firsts) == math.ceil(rows / size)


PROGRAM = """
import sys
import jax

process, port, source, target = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(process))

import lcrag.policy.stored_parameters as stored_parameters
from lcrag.policy import load_hugging_face, make_mesh, save_hugging_face
from lcrag.policy.model_files import TensorFolder

stored_parameters.PIECE_BYTES = 4000
sizes, read = [], TensorFolder.read
TensorFolder.read = lambda *arguments: (part := read(*arguments), sizes.append(part.size))[0]
config, params = load_hugging_face(source, mesh=make_mesh(data=1, fsdp=2, tensor=2))
save_hugging_face(target, config, params, shard_bytes=100_000)
print(sum(sizes) / sum(leaf.size for leaf in jax.tree.leaves(params)))
"""


@pytest.mark.slow
def test_two_processes_share_the_reading_and_one_writes(tmp_path):
    saved_decoder(tmp_path / "a", "qwen2_untied", vocab_size=384, num_key_value_heads=2)
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        port = str(opened.getsockname()[1])
    command = [sys.executable, "-c", PROGRAM]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen([*command, process, port, tmp_path / "a", tmp_path / "b"], env=environment, **pipes)
        for process in "01"
    ]
    answers = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    shares = [float(output.splitlines()[-1]) for output, _ in answers]
    assert all(0.4 < share < 0.8 for share in shares)  # half each, and overlapping last pieces
    first, second = (load_hugging_face(tmp_path / name)[1] for name in "ab")
    jax.tree.map(np.testing.assert_array_equal, first, second)
