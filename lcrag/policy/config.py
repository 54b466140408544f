"""The configuration of a decoder and of its LoRA adapters, as frozen dataclasses."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp

from lcrag.errors import UserError, typed

Family = Literal["qwen2", "qwen3", "llama"]
ComputeDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
AttentionChoice = Literal["auto", "xla", "cudnn", "splash"]

# The linear layers of a block, by their path in it.
LINEAR_LAYERS = (
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/output",
    "mlp/gate",
    "mlp/up",
    "mlp/down",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3's rotary frequency scaling (Hugging Face rope type "llama3")."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA adapters (Hu et al., 2022, arXiv:2106.09685) of frozen linear layers.

    y = x W + (alpha / rank) x A B, where only A and B are trained. A is initialised uniformly in ±1/sqrt(inputs), as in
    the authors' code and in PEFT, and B to zero, so fresh adapters do not change the policy.

    Attributes:
      rank: Columns of A and rows of B.
      targets: The layers with adapters, from `LINEAR_LAYERS`.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: Sequence[str] = LINEAR_LAYERS

    def __post_init__(self):
        object.__setattr__(self, "targets", tuple(self.targets))  # a configuration may give a list
        if self.rank < 1 or self.alpha <= 0:
            raise UserError(f"Lora has rank {self.rank} and alpha {self.alpha}: give it 1 or more, and more than 0")
        if not self.targets or (unknown := sorted(set(self.targets) - set(LINEAR_LAYERS))):
            what = f"there is no linear layer {unknown[0]!r}" if self.targets else "no layer is named"
            raise UserError(f"Lora.targets: {what}; choose among {', '.join(LINEAR_LAYERS)}")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer: Qwen2/2.5 (qkv bias), Qwen3 (q/k norm), Llama 3 (rope scaling) or a tiny one.

    Attributes:
      family: The Hugging Face architecture of the weights.
      vocabulary_size: Rows of the embedding.
      width: Size of the residual stream.
      heads: Query heads.
      kv_heads: Key and value heads; divides `heads`.
      mlp_width: Inner size of the gated MLP.
      max_positions: Longest context the model was trained for, in tokens.
      rope_theta: Base of the rotary frequencies.
      rope_scaling: Llama 3's scaling of these frequencies, or None.
      norm_epsilon: Added to the mean square in RMS norms.
      tie_embeddings: Whether the unembedding is the transposed embedding.
      compute_dtype: Dtype of activations; trained parameters stay float32.
      remat: What the backward pass recomputes: nothing ("none"), everything except the outputs of linear layers and
        attention kernels ("dots"), or whole blocks ("full"). For the shape of Qwen2.5-3B and 16,384 tokens, a full
        update needs 181, 99 and 83 GiB on one TPU v5p chip by the compiler's count, with adapters 111, 46 and 15 GiB.
      attention: Kernel for attention over whole rows: "auto" (by platform), "xla", "cudnn" or "splash".
      lora: Adapters of the linear layers, or None. With adapters, nothing else is trained.
      unroll_layers: Unroll the scan over layers (faster at tiny depth on CPU, slower to compile at real depth).
      source: The model folder that it was read from, if any; its tokenizer and settings are copied when the model is
        saved. Ignored by comparisons.
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
