"""Platform settings of a decoder, which no `config.json` holds."""

import dataclasses

from lcrag.policy.config import AttentionChoice, ComputeDtype, DecoderConfig, Remat
from lcrag.policy.parameters import Lora


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Platform settings of a decoder: the fields of a `DecoderConfig` that no `config.json` holds.

    Attributes:
      compute_dtype: Dtype of activations, "float32" or "bfloat16"; trained parameters are always float32.
      remat: Activations that the backward pass recomputes; see `DecoderConfig`.
      attention: Implementation of attention over whole rows; "auto": the kernel of the platform.
      unroll_layers: Whether to unroll the scan over layers, which is faster for tiny models.
      windowed_einsum: Whether matrix products of an update are split to overlap with all-gathers of weights (TPUs).
      lora: LoRA adapters, which are then the only trained parameters; the frozen weights are held in the compute
        dtype. None: no adapters.
    """

    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool = False
    windowed_einsum: bool = False
    lora: Lora | None = None

    def of(self, config: DecoderConfig) -> DecoderConfig:
        """Returns the decoder configuration with these settings."""
        return dataclasses.replace(config, **{name: getattr(self, name) for name in _fields()})


def _fields() -> list[str]:
    return [field.name for field in dataclasses.fields(Computation)]


DEFAULT_COMPUTATION = Computation()


def computation_of(config: DecoderConfig) -> Computation:
    """Returns the platform settings of a decoder."""
    return Computation(**{name: getattr(config, name) for name in _fields()})
