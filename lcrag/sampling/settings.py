"""How to sample: one generation's parameters and result, and the settings and counters of a `Sampler`."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from lcrag.errors import UserError, typed
from lcrag.policy import AnyMesh, DecoderConfig
from lcrag.sampling.forms import LayersForm, SamplerForm

FinishReason = Literal["stop", "eos", "length"]
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "eos", "length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How to continue one context.

    Attributes:
      stop: Strings that end the generation, wherever token boundaries fall.
      max_tokens: Maximum number of tokens; fewer if the context fills up first.
      temperature: Divides the logits; 0 is greedy.
      top_p: Nucleus mass (Holtzman et al., 2020); 1 samples the whole distribution.
      seed: With `episode`, selects the random stream: a token's random number is a function of
        (seed, episode, position) only. From 0 to 2**32 - 1.
      episode: See `seed`.
      unscaled_scores: Whether log-probabilities are those at temperature 1, and not at the sampling temperature.
    """

    stop: tuple[str, ...] = ()
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    episode: int = 0
    unscaled_scores: bool = False

    def __post_init__(self):
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: sample at least 1")
        if not (self.temperature >= 0 and 0 < self.top_p <= 1):
            raise UserError(
                f"temperature is {self.temperature} and top_p is {self.top_p}: set temperature to at least 0, and"
                " top_p above 0 and to at most 1"
            )


class SlotParameters(NamedTuple):
    """The `SamplingParameters` of all slots as arrays."""

    stop: UInt[Array, "slots"]  # state of the stop automaton, which advances with every sampled token
    limit: Int[Array, "slots"]  # context length at which sampling ends, from `max_tokens`
    temperature: Float[Array, "slots"]
    top_p: Float[Array, "slots"]
    seed: UInt[Array, "slots"]
    episode: UInt[Array, "slots"]
    unscaled_scores: Bool[Array, "slots"]

    @classmethod
    def empty(cls, slots: int) -> "SlotParameters":
        """NumPy zeros of the right dtypes."""
        dtypes = (np.uint8, np.int32, np.float32, np.float32, np.uint32, np.uint32, np.bool_)
        return cls(*(np.zeros(slots, dtype) for dtype in dtypes))


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A finished generation.

    Attributes:
      tokens: int32[n], as sampled; training uses exactly these.
      log_probabilities: float32[n], under the untruncated distribution at the sampling temperature (at temperature 1
        where the choice was greedy, and with `unscaled_scores`).
      text: Up to and including the stop string; the rest of the last token is dropped.
      finish_reason: "stop", "eos" or "length" (`max_tokens` reached or context full).
    """

    tokens: np.ndarray
    log_probabilities: np.ndarray
    text: str
    finish_reason: FinishReason


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Settings of a `Sampler`: the number and size of its slots, and the shapes that it compiles.

    Attributes:
      slots: Number of contexts held at once.
      context: Maximum length of a context, in tokens.
      block: Maximum number of tokens sampled per slot in one `decode`.
      min_finished_share: A block ends before its last token once this share of the slots that began it has finished;
        fewer are not worth the call that refills them.
      windows: Cache lengths to compile, in addition to `context`: a block reads the shortest that covers the contexts
        of the sampling slots and the block.
      decode_rows: Numbers of slots to compile `decode` for, in addition to all slots: a block computes the smallest
        that fits the sampling slots, and continues with fewer as slots finish. It copies their contexts first.
      append_rows: Numbers of slots to compile `append` for, over all devices; empty: 8, and all slots. Slots are
        split over them with the least padding. Memory for a chunk grows with rows x tokens x context.
      append_tokens: Chunk lengths to compile `append` for; texts are cut into them with the least padding.
      gather_parameters: Whether every device along the mesh axis "fsdp" holds all parameters. Otherwise each decode
        step gathers them, which takes longer than reading them; set it wherever they fit.
      layers: Whether the sampler keeps each layer's parameters and cache "apart" or "stacked"; see `SamplerForm`.
      merge_adapters: Whether LoRA adapters are merged into a copy of their kernels, which takes the memory of these
        kernels; False reads base and adapters in place.
    """

    slots: int = 64
    context: int = 512
    block: int = 32
    min_finished_share: float = 0.25
    windows: Sequence[int] = ()
    decode_rows: Sequence[int] = ()
    append_rows: Sequence[int] = ()
    append_tokens: Sequence[int] = (32, 128)
    gather_parameters: bool = False
    layers: LayersForm = "auto"
    merge_adapters: bool = True

    def __post_init__(self):
        for name in ("slots", "context", "block", "windows", "decode_rows", "append_rows", "append_tokens"):
            value = getattr(self, name)
            if min(value if isinstance(value, Sequence) else (value,), default=1) < 1:
                raise UserError(f"Sampler.{name} is {value}: set it to at least 1")

    def form(self, config: DecoderConfig, mesh: AnyMesh) -> SamplerForm:
        """Returns the form in which a sampler of these settings keeps a decoder's parameters and cache."""
        return SamplerForm(config, mesh, self.gather_parameters, self.layers, self.merge_adapters and bool(config.lora))

    @property
    def largest_append(self) -> tuple[int, int]:
        """The largest number of slots, and of tokens, of one `append`."""
        return min(self.slots, max(self.append_rows or (self.slots,))), max(self.append_tokens)


@dataclasses.dataclass
class SamplerStatistics:
    """Counters since the sampler was created.

    Attributes:
      sampled_tokens: Tokens sampled by the policy.
      appended_tokens: Tokens that were prefilled: those of the environment, and contexts that gave up their slot.
      append_positions: Positions computed for that, padding included.
      append_seconds: Time spent appending, forks included, until the devices had finished.
      decode_seconds: Time spent decoding.
      decode_steps: Steps of the decode loop.
      slot_steps: Decode steps x computed slots: the largest possible number of sampled tokens.
      compiled_shapes: Compiled functions so far, those of earlier samplers of the same sizes included.
    """

    sampled_tokens: int = 0
    appended_tokens: int = 0
    append_positions: int = 0
    append_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    slot_steps: int = 0
    compiled_shapes: int = 0

    @property
    def occupancy(self) -> float:
        """Share of slot-steps that sampled."""
        return self.sampled_tokens / max(1, self.slot_steps)
