"""Written model folders: `transformers` opens them, round trips are exact, a killed writer leaves no mixture."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from support import tiny_config
from support.random_decoders import DECODERS, random_decoder, saved_decoder

import lcrag.policy.saving as saving
import lcrag.policy.stored_parameters as stored_parameters_module
from lcrag.errors import UserError
from lcrag.policy import Lora, add_lora, initialise, load_hugging_face, logits, make_mesh, merge_lora, save_hugging_face

DIVISIBLE = {"vocab_size": 384, "num_key_value_heads": 2}


def bits(array) -> np.ndarray:
    """The bytes of an array, so that a comparison sees every bit."""
    return np.ascontiguousarray(np.asarray(array)).view(np.uint8)


def assert_same_bits(first, second):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), first, second)


def cast(params, dtype):
    """The parameters in another dtype, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), params)


def initial(config, seed=0):
    return initialise(config, jax.random.key(seed))


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def stored_tensors(folder) -> dict[str, np.ndarray]:
    return {k: v for path in folder.glob("*.safetensors") for k, v in safetensors.numpy.load_file(path).items()}


@pytest.mark.parametrize(
    ("dtype", "axes"),
    [(torch.float32, {"data": 2, "fsdp": 4}), (torch.bfloat16, {"data": 1, "fsdp": 2, "tensor": 2})],
    ids=str,
)
def test_a_round_trip_keeps_every_bit(tmp_path, axes, dtype, monkeypatch):
    monkeypatch.setattr(stored_parameters_module, "PIECE_BYTES", 4000)
    random_decoder("qwen2_untied", **DIVISIBLE).to(dtype).save_pretrained(tmp_path / "a", max_shard_size="100KB")
    name = str(dtype).removeprefix("torch.")
    mesh = make_mesh(**axes, devices=jax.devices()[: 4 if axes["data"] == 1 else 8])
    config, params = load_hugging_face(tmp_path / "a", dtype=name, mesh=mesh)
    save_hugging_face(tmp_path / "b", config, params, shard_bytes=30_000)
    first, second = stored_tensors(tmp_path / "a"), stored_tensors(tmp_path / "b")
    assert first.keys() == second.keys()
    for path in (tmp_path / "b").glob("model-*"):
        held = safetensors.numpy.load_file(path)
        assert len(held) == 1 or sum(value.nbytes for value in held.values()) <= 30_000
    for key, value in first.items():
        assert value.dtype == second[key].dtype == jnp.dtype(name)
        np.testing.assert_array_equal(bits(value), bits(second[key]), err_msg=key)
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


def test_arrays_on_the_host_and_on_devices_are_written_alike(tmp_path):
    config = tiny_config(tie_embeddings=False)
    params = initial(config)
    save_hugging_face(tmp_path / "device", config, params, dtype="bfloat16")
    save_hugging_face(tmp_path / "host", config, jax.device_get(params), dtype=jnp.bfloat16)
    assert (tmp_path / "device/model.safetensors").read_bytes() == (tmp_path / "host/model.safetensors").read_bytes()
    assert_same_bits(cast(params, jnp.bfloat16), load_hugging_face(tmp_path / "host", dtype="bfloat16")[1])


@pytest.mark.parametrize("axes", [("data",), ("data", None, ("fsdp", "tensor"))], ids=str)
def test_layers_on_different_devices_are_written_alike(tmp_path, axes, monkeypatch):
    """As a compiler may place parameters that our axis rules have not placed."""
    monkeypatch.setattr(stored_parameters_module, "PIECE_BYTES", 1000)
    config, mesh = tiny_config(layers=2), make_mesh(data=2, fsdp=2, tensor=2)
    params = initial(config)

    def placed(leaf):
        wanted = jax.sharding.PartitionSpec(*axes[: leaf.ndim])
        return jax.device_put(leaf, jax.sharding.NamedSharding(mesh, wanted))

    save_hugging_face(tmp_path / "one", config, params)
    save_hugging_face(tmp_path / "many", config, params | {"layers": jax.tree.map(placed, params["layers"])})
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "many/model.safetensors").read_bytes()


def test_adapters_are_merged(tmp_path):
    config = tiny_config()
    adapted, params = add_lora(config, initial(config), Lora(rank=2), jax.random.key(1))
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.01), params)
    with pytest.raises(UserError, match="lora_a has no place in the checkpoint"):
        save_hugging_face(tmp_path, config, params)
    save_hugging_face(tmp_path, adapted, params)
    merged_config, merged = merge_lora(adapted, params)
    read_config, read = load_hugging_face(tmp_path)
    assert read_config == merged_config == config
    assert_same_bits(merged, read)


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

    monkeypatch.setattr(saving, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        save_hugging_face(tmp_path, config, later)
    assert_same_bits(earlier, load_hugging_face(tmp_path)[1])
    monkeypatch.undo()
    save_hugging_face(tmp_path, config, later)
    assert_same_bits(later, load_hugging_face(tmp_path)[1])
    assert names(tmp_path) == {"config.json", "model.safetensors", "notes.txt"}


def test_a_model_can_replace_the_one_it_was_read_from(tmp_path):
    saved_decoder(tmp_path, "qwen3")
    (tmp_path / "tokenizer.json").write_text("{}")
    config, params = load_hugging_face(tmp_path)
    save_hugging_face(tmp_path, config, params, dtype="bfloat16")
    assert_same_bits(cast(params, jnp.bfloat16), load_hugging_face(tmp_path, "bfloat16")[1])
    assert "tokenizer.json" in names(tmp_path)
    assert not list(tmp_path.glob("*index.json"))


def test_parameters_of_another_configuration_are_refused(tmp_path):
    params = initial(tiny_config())
    extra = params | {"adapter": params["embedding"]}
    for given, changes, sentence in (
        (params, {"tie_embeddings": False}, "unembedding is missing"),
        (extra, {}, "parameter adapter has no place"),
        (params, {"mlp_width": 64}, "parameter layers/mlp/.* has shape"),
        (params, {"layers": 3}, "parameter layers/.* has shape"),
    ):
        with pytest.raises(UserError, match=sentence):
            save_hugging_face(tmp_path, tiny_config(**changes), given)
    assert not names(tmp_path)
