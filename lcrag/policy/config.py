"""The shape of a decoder, as a frozen value, read from and written to a Hugging Face `config.json`."""

import dataclasses
import json
import pathlib
from typing import Any, Literal

import jax.numpy as jnp

from lcrag.errors import UserError

Family = Literal["qwen2", "qwen3", "llama"]
ComputeDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
AttentionChoice = Literal["auto", "xla", "cudnn", "splash"]
ARCHITECTURES: dict[str, str] = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3's rotary frequency scaling (Hugging Face rope type "llama3")."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """One decoder-only transformer: Qwen2/2.5 (qkv bias), Qwen3 (q/k norm), Llama 3 (rope scaling) or a tiny one.

    Attributes:
      family: Which Hugging Face architecture the weights belong to.
      vocabulary_size: Rows of the embedding.
      width: Size of the residual stream.
      layers: Number of transformer blocks.
      heads: Query heads.
      kv_heads: Key and value heads; divides `heads`.
      head_width: Size of one head.
      mlp_width: Inner size of the gated MLP.
      max_positions: Longest context the model was made for, in tokens.
      rope_theta: Base of the rotary frequencies.
      rope_scaling: Llama 3's scaling of them, or None.
      norm_epsilon: Added to the mean square in RMS norms.
      tie_embeddings: Whether the unembedding is the embedding transposed.
      compute_dtype: Dtype of activations; parameters stay float32 masters.
      remat: What the backward pass recomputes: "none", "dots" (keeps matrix products) or "full".
      attention: What attends over whole rows: "auto" (the platform's own kernel), "xla", "cudnn" or "splash".
      unroll_layers: Unroll the scan over layers (quicker at tiny depth on CPU, slower to compile at real depth).
    """

    family: Family = "qwen3"
    vocabulary_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    max_positions: int
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-6
    tie_embeddings: bool = True
    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool = False

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads: make one divide the other"
            )

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.family == "qwen3"

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.compute_dtype)


def config_from_hugging_face(raw: dict[str, Any], source: str = "config.json") -> DecoderConfig:
    """Reads the fields of a Hugging Face configuration.

    Raises:
      UserError: unknown architecture, a missing field, sliding-window attention or an unsupported rope type.
    """
    family = raw.get("model_type")
    if family not in ARCHITECTURES:
        raise UserError(f"{source} has model_type {family!r}; supported are {', '.join(ARCHITECTURES)}")
    if raw.get("use_sliding_window"):
        raise UserError(f"{source} sets use_sliding_window, which is not supported: set it to false")
    try:
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        heads, width = raw["num_attention_heads"], raw["hidden_size"]
        return DecoderConfig(
            family=family,
            vocabulary_size=raw["vocab_size"],
            width=width,
            layers=raw["num_hidden_layers"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_width=raw.get("head_dim") or width // heads,
            mlp_width=raw["intermediate_size"],
            max_positions=raw["max_position_embeddings"],
            rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta", 10_000.0)),
            rope_scaling=_rope_scaling(rope, source),
            norm_epsilon=raw["rms_norm_eps"],
            tie_embeddings=raw.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise UserError(f"{source} lacks the field {error}: it is not a complete {family} configuration") from error


def _rope_scaling(rope: dict[str, Any], source: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"{source} asks for rope type {kind!r}; supported are default and llama3")
    return RopeScaling(
        factor=rope["factor"],
        low_frequency_factor=rope["low_freq_factor"],
        high_frequency_factor=rope["high_freq_factor"],
        original_positions=rope["original_max_position_embeddings"],
    )


def config_to_hugging_face(config: DecoderConfig, eos_ids: tuple[int, ...] = ()) -> dict[str, Any]:
    """The `config.json` that `transformers` reads back as the same model."""
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default"}
    if scaling := config.rope_scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    return {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": list(eos_ids),
    }


def read_config(folder: str | pathlib.Path) -> DecoderConfig:
    """The configuration of a Hugging Face model folder."""
    path = pathlib.Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"no model in {folder}: expected the file config.json")
    try:
        raw = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return config_from_hugging_face(raw, str(path))
