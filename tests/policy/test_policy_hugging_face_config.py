"""Fields of `config.json`: read as `transformers` reads them, or refused in one sentence."""

import json

import pytest
import torch
import transformers

from lcrag.errors import UserError
from lcrag.policy import RopeScaling, parameter_count, read_config
from lcrag.policy.hugging_face import stored_parameters
from lcrag.policy.hugging_face_config import config_to_hugging_face

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
