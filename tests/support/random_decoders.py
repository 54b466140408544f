"""Small random decoders of `transformers`, one per architecture and awkward shape: the reference of the parity tests.

Every parameter is random, including norms and biases. Needs PyTorch, an extra of the tests.
"""

import pathlib
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 387,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
# Beyond its 64 original positions, all three bands of the scaling are in use.
SCALED_ROTATION = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PLAIN_ROTATION = {"rope_type": "default", "rope_theta": 1_000_000.0}

DECODERS: dict[str, tuple[type, dict[str, Any]]] = {
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    "qwen3": (
        transformers.Qwen3Config,
        {"tie_word_embeddings": True, "head_dim": 20, "num_attention_heads": 6, "rope_parameters": PLAIN_ROTATION},
    ),
    "llama": (
        transformers.LlamaConfig,
        {"tie_word_embeddings": False, "num_key_value_heads": 4, "rope_parameters": SCALED_ROTATION},
    ),
    # Windows are shorter than most texts of the tests; two of three layers have one, with a rotation of its own.
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 20,
            "query_pre_attn_scalar": 12,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0}},
        },
    ),
    "gemma3_capped": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 12,
            "query_pre_attn_scalar": 12,
            "num_key_value_heads": 1,
            "sliding_window": 16,
            "sliding_window_pattern": 2,
            "final_logit_softcapping": 2.0,
        },
    ),
}


def random_decoder(name: str, seed: int = 0, **changes) -> transformers.PreTrainedModel:
    """Returns a float32 model of `DECODERS` on the CPU; `changes` override fields of its Hugging Face configuration."""
    make_config, own = DECODERS[name]
    config = make_config(**(SIZES | own | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            # Matrices preserve the scale of their inputs; norms and biases get noise of 0.2.
            spread = each.shape[-1] ** -0.5 if each.ndim == 2 else 0.2
            noise = spread * torch.randn(each.shape, generator=generator)
            each.copy_(noise if each.ndim == 2 else each + noise)
    return model


def saved_decoder(folder: pathlib.Path, name: str, **changes) -> transformers.PreTrainedModel:
    """Returns `random_decoder(...)`, saved to a folder in several shards."""
    model = random_decoder(name, **changes)
    model.save_pretrained(folder, max_shard_size="100KB")
    return model
