"""How a decoder is computed, whatever its weights: what a platform decides about a model."""

import dataclasses

import gin

from lcrag.policy import DecoderConfig, Lora
from lcrag.policy.config import AttentionChoice, ComputeDtype, Remat

gin.register(Lora, module="lcrag.policy")


@gin.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """The fields of a `DecoderConfig` that no `config.json` holds.

    Attributes:
      compute_dtype: "float32" or "bfloat16", of activations; parameters that are trained stay float32.
      remat: What the backward pass recomputes; see `DecoderConfig`.
      attention: What attends over whole rows; "auto": the platform's own kernel.
      unroll_layers: Unroll the scan over layers; quicker for tiny models.
      lora: Adapters, which alone are learned; the frozen weights are then held in the compute dtype. None: no adapters.
    """

    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool = False
    lora: Lora | None = None

    def of(self, config: DecoderConfig) -> DecoderConfig:
        """The same decoder, computed this way."""
        return dataclasses.replace(config, **{name: getattr(self, name) for name in _fields()})


def _fields() -> list[str]:
    return [field.name for field in dataclasses.fields(Computation)]


DEFAULT_COMPUTATION = Computation()


def computation_of(config: DecoderConfig) -> Computation:
    """How a decoder is computed."""
    return Computation(**{name: getattr(config, name) for name in _fields()})
