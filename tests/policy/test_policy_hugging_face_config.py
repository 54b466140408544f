"""Fields of `config.json` as `transformers` reads them; damaged, incomplete and foreign folders are refused."""

import json
import shutil

import pytest
import safetensors.torch
import torch
import transformers
from support.random_decoders import saved_decoder

from lcrag.errors import UserError
from lcrag.policy import RopeScaling, load_hugging_face, parameter_count, read_config
from lcrag.policy.hugging_face import config_to_hugging_face, stored_parameters

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
PUBLISHED = {"Qwen2.5-3B": QWEN2_5_3B, "Qwen3-8B": QWEN3_8B, "Llama-3.2-3B": LLAMA3_2_3B}
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
    "rope type 'linear'": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "rotary parameters per layer type": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    "model_type 'gemma3'": {"model_type": "gemma3"},
    "architectures": {"architectures": ["Qwen3ForSequenceClassification"]},
    "lacks the field 'hidden_size'": {"hidden_size": None},
    "lacks the field 'num_key_value_heads'": {"num_key_value_heads": None},
    "hidden_size '4096': it must be a number": {"hidden_size": "4096"},
    "num_hidden_layers 0: it must be a positive whole number": {"num_hidden_layers": 0},
    "head_width even": {"head_dim": 33},
    "lacks the field 'factor'": {"rope_scaling": {"rope_type": "llama3"}},
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
