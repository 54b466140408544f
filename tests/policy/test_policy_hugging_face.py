"""Model folders: read onto every mesh, by several processes; written as `transformers` opens them; never a mixture."""

import json
import shutil

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
from lcrag.files import resolved_folder
from lcrag.policy import (
    Lora,
    RopeScaling,
    add_lora,
    initialise,
    load_hugging_face,
    load_tokenizer,
    logits,
    make_mesh,
    param_shardings,
    parameter_count,
    read_config,
    save_hugging_face,
    stored_dtype,
)
from lcrag.policy.hugging_face import TensorFolder, config_to_hugging_face, flat_parameters, stored_parameters

MESHES = {
    "one axis": {"data": 1, "fsdp": 8},
    "two axes": {"data": 1, "fsdp": 4, "tensor": 2},
    "three axes, replicated twice": {"data": 2, "fsdp": 2, "tensor": 2},
}
DIVISIBLE = {"vocab_size": 384, "num_key_value_heads": 2}


@pytest.fixture(scope="module", params=DECODERS)
def model(request, tmp_path_factory):
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


@pytest.mark.parametrize(
    ("model", "axes"), [*zip(("qwen2", "qwen3", "qwen2"), MESHES.values(), strict=True)], indirect=["model"], ids=MESHES
)
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


def test_an_embedding_may_be_stored_twice(tmp_path):
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


@pytest.mark.parametrize("name", DECODERS)
def test_transformers_opens_what_we_write(tmp_path, name):
    saved_decoder(tmp_path / "a", name)
    config, params = load_hugging_face(tmp_path / "a")
    changed = jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(1.25), params)  # what training does
    save_hugging_face(tmp_path / "b", config, changed, shard_bytes=50_000)
    assert (tmp_path / "b" / "model.safetensors.index.json").is_file()
    for path in (tmp_path / "b").glob("model-*"):
        held = safetensors.numpy.load_file(path)
        assert len(held) == 1 or sum(value.nbytes for value in held.values()) <= 50_000
    assert load_hugging_face(tmp_path / "b")[0] == config
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())
    tokens = np.random.default_rng(0).integers(0, config.vocabulary_size, (2, 80))
    with torch.no_grad():
        expected = model.eval()(torch.tensor(tokens)).logits.numpy()
    found = np.asarray(logits(config, changed, jnp.asarray(tokens)))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_arrays_are_written_alike_wherever_they_are(tmp_path):
    """On the host, and as a compiler may place parameters that our axis rules have not placed."""
    config, mesh = tiny_config(layers=2), make_mesh(data=2, fsdp=2, tensor=2)
    params = initial(config)

    def placed(leaf):
        wanted = jax.sharding.PartitionSpec(*("data", None, ("fsdp", "tensor"))[: leaf.ndim])
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
    for _ in range(2):  # again into the same folder
        save_hugging_face(b, config, params)
    assert (b / "chat_template.jinja").read_text() == "{{ messages }}"
    added = {"config.json", "manifest.json", "model.safetensors"}
    assert names(b) == files.keys() - {"pytorch_model.bin"} | added
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
    assert names(tmp_path / "model") == {"config.json", "manifest.json", "model.safetensors"}
    assert load_hugging_face(tmp_path / "model")[0] == config  # the source is ignored
    assert ("old no longer exists" in caplog.text) == (source is not None)


def test_a_killed_writer_leaves_the_earlier_model(tmp_path, monkeypatch):
    config = tiny_config()
    earlier, later = initial(config), initial(config, seed=1)
    save_hugging_face(tmp_path, config, earlier, shard_bytes=20_000)
    (tmp_path / "notes.txt").write_text("mine")

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(hugging_face, "write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        save_hugging_face(tmp_path, config, later)
    assert_same_bits(earlier, load_hugging_face(tmp_path)[1])
    monkeypatch.undo()
    save_hugging_face(tmp_path, config, later)
    assert_same_bits(later, load_hugging_face(tmp_path)[1])
    assert names(tmp_path) == {"config.json", "manifest.json", "model.safetensors", "notes.txt"}


def test_a_copy_that_differs_in_any_bit_is_refused(tmp_path):
    """Also in the tokenizer's files: with two ids exchanged, a policy would read and write other words."""
    source = resolved_folder("atlas/cold_start")
    (config, params), tokenizer = load_hugging_face(source), load_tokenizer(source)
    save_hugging_face(tmp_path, config, params, "bfloat16", shard_bytes=500_000, save_tokenizer=tokenizer.save)
    for path in sorted(tmp_path.iterdir()):
        content, middle = path.read_bytes(), path.stat().st_size // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        for load in (load_hugging_face, load_tokenizer)[: 1 + (path.suffix == ".jinja" or "token" in path.name)]:
            with pytest.raises(UserError, match=rf"{path.name} is not as it was saved.*copy"):
                load(tmp_path)
        path.write_bytes(content)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())
    ids = vocabulary["model"]["vocab"]
    first, second = list(ids)[100:102]
    ids[first], ids[second] = ids[second], ids[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match="tokenizer.json is not as it was saved"):
        load_tokenizer(tmp_path)
    (tmp_path / "manifest.json").unlink()  # the change is meant
    load_hugging_face(tmp_path)
    load_tokenizer(tmp_path)


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


# --- Settings, and damaged, incomplete and foreign folders ---

# As published, less what no reader of weights looks at.
QWEN2_5_3B = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 32768, "max_window_layers": 70, "model_type": "qwen2", "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
    "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
LLAMA3_2_3B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 24, "num_hidden_layers": 28, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "vocab_size": 128256,
}  # fmt: skip
GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": [1, 106], "final_logit_softcapping": None,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
    "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 262144,
}  # fmt: skip
PUBLISHED = {
    "Qwen2.5-3B": QWEN2_5_3B,
    "Qwen3-8B": QWEN3_8B,
    "Llama-3.2-3B": LLAMA3_2_3B,
    "linear scaling": LLAMA3_2_3B | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "Gemma-3-1B": GEMMA_3_1B,
    "Gemma, scaled": GEMMA_3_1B | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
}
REFUSED = {
    "use_sliding_window to True": {"use_sliding_window": True},
    "'sliding_attention' in layer_types": {"layer_types": ["full_attention", "sliding_attention"]},
    "hidden_act to 'gelu'": {"hidden_act": "gelu"},
    "attention_bias to True": {"attention_bias": True},
    "mlp_bias to True": {"mlp_bias": True},
    "attention_dropout to 0.1": {"attention_dropout": 0.1},
    "partial_rotary_factor to 0.5": {"partial_rotary_factor": 0.5},
    "part of each head": {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
    "quantization_config to": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "rope type 'yarn'": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "rotary parameters per layer type": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    "model_type 'gemma3'": {"model_type": "gemma3"},
    "architectures": {"architectures": ["Qwen3ForSequenceClassification"]},
    "architectures 5: it must be a list": {"architectures": 5},
    "layer_types .*: it must be a list": GEMMA_3_1B | {"layer_types": [None]},
    "rope_parameters 7: it must be an object": GEMMA_3_1B | {"rope_parameters": 7},
    "lacks the field 'hidden_size'": {"hidden_size": None},
    "hidden_size '4096': it must be a number": {"hidden_size": "4096"},
    "num_hidden_layers 0: it must be a positive whole number": {"num_hidden_layers": 0},
    "head_width even": {"head_dim": 33},
    "lacks the field 'factor'": {"rope_scaling": {"rope_type": "llama3"}},
    "hidden_activation to 'gelu'": GEMMA_3_1B | {"hidden_activation": "gelu"},
    "attn_logit_softcapping to 50.0": GEMMA_3_1B | {"attn_logit_softcapping": 50.0},
    "use_bidirectional_attention to True": GEMMA_3_1B | {"use_bidirectional_attention": True},
    "'chunked_attention' in layer_types": GEMMA_3_1B | {"layer_types": ["chunked_attention"] * 26},
    "scales the rotation of sliding windows": GEMMA_3_1B
    | {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 8.0}}},
    "sliding_window_pattern 'x': it must be a number": GEMMA_3_1B | {"sliding_window_pattern": "x"},
    "expected one set for each": GEMMA_3_1B | {"rope_parameters": {"rope_theta": 1e4}},
    "global_layers names layer 26": GEMMA_3_1B | {"layer_types": ["sliding_attention"] * 26 + ["full_attention"]},
}


def config_of(folder, raw):
    (folder / "config.json").write_text(json.dumps(raw))
    return read_config(folder)


@pytest.mark.parametrize("raw", PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_have_the_tensors_of_transformers_and_are_written_as_they_are(tmp_path, raw):
    config = config_of(tmp_path, raw)
    theirs = transformers.AutoConfig.for_model(**raw)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if config.tie_embeddings:
        del shapes["lm_head.weight"]
    assert {name: place.shape for name, place in stored_parameters(config).items()} == shapes
    assert parameter_count(config) == sum(parameter.numel() for parameter in model.parameters())
    assert config.norm_epsilon == theirs.rms_norm_eps

    written = config_to_hugging_face(config, "bfloat16", raw)
    assert config_of(tmp_path, written) == config
    theirs, original = (transformers.AutoConfig.for_model(**each).to_dict() for each in (written, raw))
    del theirs["head_dim"]
    original.pop("head_dim", None)
    assert theirs == original


def test_what_is_not_computed_is_refused(tmp_path):
    for sentence, changes in REFUSED.items():
        with pytest.raises(UserError, match=sentence) as caught:
            config_of(tmp_path, QWEN3_8B | changes)
        assert "\n" not in str(caught.value)
    for content in (b"{", b"[]", b"\xff\xfe"):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(UserError, match="config.json is not "):
            read_config(tmp_path)


def test_absent_fields_have_the_defaults_of_transformers(tmp_path):
    bare = {"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    bare |= {"intermediate_size": 32, "max_position_embeddings": 16}
    assert config_of(tmp_path, bare | {"model_type": "llama"}).head_width == 12
    qwen3 = config_of(tmp_path, bare | {"model_type": "qwen3", "num_key_value_heads": 2})
    theirs = transformers.Qwen3Config(**bare, num_key_value_heads=2)
    assert qwen3.head_width == theirs.head_dim == 128
    assert qwen3.rope_theta == theirs.rope_parameters["rope_theta"] == 10_000.0
    assert (qwen3.norm_epsilon, qwen3.tie_embeddings) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    # the scaling starts at the longest context if nothing else is said
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    raw = LLAMA3_2_3B | {"rope_scaling": scaling, "max_position_embeddings": 4096}
    expected = RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=4096)
    assert config_of(tmp_path, raw).rope_scaling == expected
    assert transformers.LlamaConfig(**raw).rope_parameters["original_max_position_embeddings"] == 4096


def test_the_decoder_of_a_model_with_images_is_read_alone(tmp_path):
    text = random_decoder("gemma3")
    images = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    images |= {"image_size": 28, "patch_size": 14}
    settings = transformers.Gemma3Config(text_config=text.config, vision_config=images, mm_tokens_per_image=4)
    whole = transformers.Gemma3ForConditionalGeneration(settings)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.save_pretrained(tmp_path / "whole")
    raw = json.loads((tmp_path / "whole" / "config.json").read_text())
    (tmp_path / "whole" / "config.json").write_text(json.dumps(raw | {"eos_token_id": [1, 106]}))
    config, params = load_hugging_face(tmp_path / "whole")
    assert_parameters(params, text, config)
    assert stored_dtype(tmp_path / "whole") == "float32"
    save_hugging_face(tmp_path / "text", config, params)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "text")
    assert isinstance(model, transformers.Gemma3ForCausalLM)
    assert model.config.eos_token_id == [1, 106]
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        np.testing.assert_allclose(model(tokens).logits, text(tokens).logits, atol=1e-5)


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
