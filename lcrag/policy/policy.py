"""The `Policy` value, a decoder with everything needed to run it, and the platform settings of a decoder."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from lcrag.policy.config import AttentionChoice, ComputeDtype, DecoderConfig, Lora, Remat
from lcrag.policy.tokenizer import HuggingFaceTokenizer


@dataclasses.dataclass(frozen=True)
class Policy:
    """A decoder with its parameters, tokenizer and devices."""

    name: str  # the folder that it was loaded from
    config: DecoderConfig
    params: Any
    tokenizer: HuggingFaceTokenizer
    mesh: Mesh
    saved_dtype: ComputeDtype | None = None  # of a saved copy; with adapters, its folder's; None: the parameters'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Platform settings of a decoder: the fields of a `DecoderConfig` that no `config.json` holds.

    Attributes:
      compute_dtype, remat, attention, unroll_layers: See `DecoderConfig`.
      lora: LoRA adapters, which are then the only trained parameters; the frozen weights are held in the compute
        dtype. None: no adapters.
    """

    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool = False
    lora: Lora | None = None

    def of(self, config: DecoderConfig) -> DecoderConfig:
        """Returns the decoder configuration with these settings."""
        return dataclasses.replace(config, **vars(self))


DEFAULT_COMPUTATION = Computation()


def computation_of(config: DecoderConfig) -> Computation:
    """Returns the platform settings of a decoder."""
    return Computation(**{name: getattr(config, name) for name in vars(DEFAULT_COMPUTATION)})
