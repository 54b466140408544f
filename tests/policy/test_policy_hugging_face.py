"""Model folders: read onto every mesh, by several processes; written as `transformers` opens them; never a mixture."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import transformers
from support import tiny_config
from support.random_decoders import DECODERS, random_decoder, saved_decoder

import lcrag.policy.hugging_face as hugging_face
from lcrag.errors import UserError
from lcrag.policy import (
    Lora,
    add_lora,
    initialise,
    load_hugging_face,
    logits,
    make_mesh,
    param_shardings,
    save_hugging_face,
)
from lcrag.policy.hugging_face import TensorFolder, flat_parameters, stored_parameters

MESHES = {
    "one axis": {"data": 1, "fsdp": 8},
    "two axes": {"data": 1, "fsdp": 4, "tensor": 2},
    "three axes, replicated twice": {"data": 2, "fsdp": 2, "tensor": 2},
}
DIVISIBLE = {"vocab_size": 384, "num_key_value_heads": 2}


@pytest.fixture(scope="module", params=DECODERS)
def model(request, tmp_path_factory):
    """A model of `transformers`, and the folder that it was written to."""
    folder = tmp_path_factory.mktemp(request.param)
    return saved_decoder(folder, request.param, **DIVISIBLE), folder


def assert_same_bits(first, second):
    """Compares arrays, trees of arrays or dictionaries of them by their bytes."""

    def same(a, b):
        a, b = (np.ascontiguousarray(np.asarray(each)).view(np.uint8) for each in (a, b))
        np.testing.assert_array_equal(a, b)

    jax.tree.map(same, first, second)


def assert_parameters(params, model, config):
    """Compares our parameters with PyTorch's: kernels are transposed, layers are stacked."""
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    layers: dict[str, list[np.ndarray]] = {}
    for name, place in stored_parameters(config).items():
        layers.setdefault(place.path, []).append(state[name].T if place.path.endswith("kernel") else state[name])
    expected = {path: np.stack(each) if path.startswith("layers/") else each[0] for path, each in layers.items()}
    assert_same_bits(flat_parameters(params), expected)


def initial(config, seed=0):
    return initialise(config, jax.random.key(seed))


def cast(params, dtype):
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), params)


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def stored_tensors(folder) -> dict[str, np.ndarray]:
    return {k: v for path in folder.glob("*.safetensors") for k, v in safetensors.numpy.load_file(path).items()}


@pytest.mark.parametrize("model", ["qwen2_untied", "qwen3"], indirect=True)
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_every_mesh_gets_the_same_values_and_reads_them_once(model, axes, monkeypatch):
    torch_model, folder = model
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    sizes: list[int] = []
    read = TensorFolder.read

    def counted(self, name, index=()):
        part = read(self, name, index)
        sizes.append(part.size)
        return part

    monkeypatch.setattr(TensorFolder, "read", counted)
    mesh = make_mesh(**axes)
    config, params = load_hugging_face(folder, mesh=mesh)
    assert_parameters(params, torch_model, config)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == param_shardings(config, mesh)
    assert sum(sizes) == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert max(sizes) <= config.vocabulary_size * config.width / (axes["fsdp"] * axes.get("tensor", 1))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", ["float32", jnp.bfloat16])
def test_dtypes_are_cast_as_pytorch_casts_them(tmp_path, stored, dtype):
    model = random_decoder("qwen3").to(stored)
    model.save_pretrained(tmp_path)
    config, params = load_hugging_face(tmp_path, dtype=dtype)
    wide = model.to(torch.bfloat16).float() if dtype == jnp.bfloat16 else model.float()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    assert_parameters(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), wide, config)


def test_an_embedding_stored_twice_is_read_if_both_are_the_same(tmp_path):
    model = saved_decoder(tmp_path, "qwen3")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for path in tmp_path.glob("model*"):
        path.unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))  # is not read
    assert "lm_head.weight" in state
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(10)  # old Llama folders have such buffers
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    config, params = load_hugging_face(tmp_path)
    assert_parameters(params, model, config)
    state["lm_head.weight"][-1, -1] += 1
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="tie_word_embeddings"):
        load_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "axes"),
    [(torch.float32, {"data": 2, "fsdp": 4}), (torch.bfloat16, {"data": 1, "fsdp": 2, "tensor": 2})],
    ids=str,
)
def test_a_round_trip_keeps_every_bit(tmp_path, axes, dtype):
    random_decoder("qwen2_untied", **DIVISIBLE).to(dtype).save_pretrained(tmp_path / "a", max_shard_size="100KB")
    name = str(dtype).removeprefix("torch.")
    mesh = make_mesh(**axes, devices=jax.devices()[: 4 if axes["data"] == 1 else 8])
    config, params = load_hugging_face(tmp_path / "a", dtype=name, mesh=mesh)
    save_hugging_face(tmp_path / "b", config, params, shard_bytes=30_000)
    first, second = stored_tensors(tmp_path / "a"), stored_tensors(tmp_path / "b")
    assert {value.dtype for value in second.values()} == {jnp.dtype(name)}
    assert_same_bits(first, second)
    for path in (tmp_path / "b").glob("model-*"):
        held = safetensors.numpy.load_file(path)
        assert len(held) == 1 or sum(value.nbytes for value in held.values()) <= 30_000
    again, read = load_hugging_face(tmp_path / "b", dtype=name)
    assert again == config
    assert_same_bits(params, read)


@pytest.mark.parametrize("name", DECODERS)
def test_transformers_opens_what_we_write(tmp_path, name):
    saved_decoder(tmp_path / "a", name)
    config, params = load_hugging_face(tmp_path / "a")
    changed = jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(1.25), params)  # what training does
    save_hugging_face(tmp_path / "b", config, changed, shard_bytes=50_000)
    assert (tmp_path / "b" / "model.safetensors.index.json").is_file()
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())
    tokens = np.random.default_rng(0).integers(0, config.vocabulary_size, (2, 80))
    with torch.no_grad():
        expected = model.eval()(torch.tensor(tokens)).logits.numpy()
    found = np.asarray(logits(config, changed, jnp.asarray(tokens)))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("axes", [("data",), ("data", None, ("fsdp", "tensor"))], ids=str)
def test_arrays_are_written_alike_wherever_they_are(tmp_path, axes):
    """On the host, and as a compiler may place parameters that our axis rules have not placed."""
    config, mesh = tiny_config(layers=2), make_mesh(data=2, fsdp=2, tensor=2)
    params = initial(config)

    def placed(leaf):
        wanted = jax.sharding.PartitionSpec(*axes[: leaf.ndim])
        return jax.device_put(leaf, jax.sharding.NamedSharding(mesh, wanted))

    save_hugging_face(tmp_path / "one", config, params, dtype="bfloat16")
    save_hugging_face(tmp_path / "host", config, jax.device_get(params), dtype=jnp.bfloat16)
    spread = params | {"layers": jax.tree.map(placed, params["layers"])}
    save_hugging_face(tmp_path / "many", config, spread, dtype="bfloat16")
    written = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "host", "many")}
    assert len(written) == 1
    assert_same_bits(cast(params, jnp.bfloat16), load_hugging_face(tmp_path / "one", dtype="bfloat16")[1])


def test_tokenizer_and_settings_are_copied_from_the_source(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    saved_decoder(a, "llama", bos_token_id=3, initializer_range=0.5)
    files = {"generation_config.json": '{"eos_token_id": [5, 6], "top_k": 20}', "tokenizer.json": "{}"}
    files |= {"chat_template.jinja": "{{ messages }}", "pytorch_model.bin": "not copied"}
    for name, text in files.items():
        (a / name).write_text(text)
    config, params = load_hugging_face(a)
    save_hugging_face(b, config, params)
    assert (b / "chat_template.jinja").read_text() == "{{ messages }}"
    assert names(b) == files.keys() - {"pytorch_model.bin"} | {"config.json", "model.safetensors"}
    assert json.loads((b / "generation_config.json").read_text()) == {"eos_token_id": [5, 6], "top_k": 20}
    read, original = (transformers.AutoConfig.from_pretrained(folder).to_dict() for folder in (b, a))
    ignored = {"transformers_version": None, "_name_or_path": None}
    assert read | ignored == original | ignored
    save_hugging_face(b, config, params, eos_ids=(9,))
    for name in ("generation_config.json", "config.json"):
        assert json.loads((b / name).read_text())["eos_token_id"] == 9
    save_hugging_face(a, config, params, dtype="bfloat16")  # in place of the model that it was read from
    assert_same_bits(cast(params, jnp.bfloat16), load_hugging_face(a, "bfloat16")[1])
    assert "tokenizer.json" in names(a)
    assert not list(a.glob("*index.json"))


@pytest.mark.parametrize("source", [None, "old"])
def test_without_a_source_only_the_model_is_written(tmp_path, caplog, source):
    config = tiny_config(source=source and str(tmp_path / source))
    save_hugging_face(tmp_path / "model", config, initial(config))
    assert names(tmp_path / "model") == {"config.json", "model.safetensors"}
    assert load_hugging_face(tmp_path / "model")[0] == config  # the source is ignored
    assert ("old no longer exists" in caplog.text) == (source is not None)


def test_a_killed_writer_leaves_the_earlier_model(tmp_path, monkeypatch):
    config = tiny_config()
    earlier, later = initial(config), initial(config, seed=1)
    save_hugging_face(tmp_path, config, earlier, shard_bytes=20_000)
    (tmp_path / "notes.txt").write_text("mine")

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(hugging_face, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        save_hugging_face(tmp_path, config, later)
    assert_same_bits(earlier, load_hugging_face(tmp_path)[1])
    monkeypatch.undo()
    save_hugging_face(tmp_path, config, later)
    assert_same_bits(later, load_hugging_face(tmp_path)[1])
    assert names(tmp_path) == {"config.json", "model.safetensors", "notes.txt"}


def test_parameters_of_another_configuration_are_refused(tmp_path):
    params = initial(tiny_config())
    extra = params | {"adapter": params["embedding"]}
    _, adapted = add_lora(tiny_config(), params, Lora(rank=2), jax.random.key(1))
    for given, changes, name in (
        (adapted, {}, ".*lora_a"),
        (params, {"tie_embeddings": False}, "unembedding"),
        (extra, {}, "adapter"),
        (params, {"mlp_width": 64}, "layers/mlp"),
        (params, {"layers": 3}, "layers/"),
    ):
        with pytest.raises(UserError, match=f"parameter {name}"):
            save_hugging_face(tmp_path, tiny_config(**changes), given)
    assert not names(tmp_path)
