"""The shape of a decoder, as a frozen value."""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from lcrag.errors import UserError
from lcrag.policy.lora import Lora

Family = Literal["qwen2", "qwen3", "llama"]
ComputeDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
AttentionChoice = Literal["auto", "xla", "cudnn", "splash"]


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
      remat: What the backward pass recomputes: nothing ("none"), all but what linear layers and attention kernels give
        ("dots"), or whole blocks ("full"). Shaped like Qwen2.5-3B, 16,384 tokens at a time and everything learned, an
        update needs 181, 99 and 83 GiB on one TPU v5p chip by the compiler's count; adapters 111, 46 and 15 GiB.
      attention: What attends over whole rows: "auto" (the platform's own kernel), "xla", "cudnn" or "splash".
      lora: Adapters beside the linear layers, or None; with them, nothing else is learned.
      unroll_layers: Unroll the scan over layers (quicker at tiny depth on CPU, slower to compile at real depth).
      source: The model folder it was read from, if any; its tokenizer and settings go along when the model is saved.
        Two configurations that differ in it alone are equal.
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
    lora: Lora | None = None
    unroll_layers: bool = False
    source: str | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self):
        if self.head_width % 2:
            raise UserError(f"heads {self.head_width} wide cannot be rotated: make head_width even")
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
