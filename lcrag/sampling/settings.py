"""Settings and counters of a `Sampler`."""

import dataclasses
from collections.abc import Sequence

from lcrag.limits import Amount, Count, NonNegative, Share, check_fields
from lcrag.policy import AnyMesh, DecoderConfig
from lcrag.sampling.forms import LayersForm, SamplerForm


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Settings of a `Sampler`: the number and size of its slots, and the shapes that it compiles.

    Attributes:
      slots: Number of contexts held at once.
      context: Maximum length of a context, in tokens.
      block: Maximum number of tokens sampled per slot in one `decode`.
      wanted: A block ends early once this share of the slots that began it has finished.
      windows: Cache lengths to compile, in addition to `context`: a block reads the shortest that covers the contexts
        of the sampling slots and the block.
      decode_rows: Numbers of slots to compile `decode` for, in addition to all slots: a block computes the smallest
        that fits the sampling slots, and continues with fewer as slots finish. It copies their contexts first.
      append_rows: Numbers of slots to compile `append` for, over all devices; empty: 8, and all slots. Slots are
        split over them with the least padding. Memory for a chunk grows with rows x tokens x context.
      append_tokens: Chunk lengths to compile `append` for; texts are cut into them with the least padding.
      gather_parameters: Whether every device along the mesh axis "fsdp" holds all parameters. Otherwise each decode
        step gathers them, which takes longer than reading them; set it wherever they fit.
      drafts: Tokens drafted from the context and verified at each step, in addition to the sampled one; 0: none. They
        change no token, and pay if the time of a step is that of reading the parameters; see `lcrag.sampling.drafts`.
      least_tokens_per_pass: Drafts pause while a step yields fewer tokens per slot than this. Set it to the ratio of
        the time of a step with drafts to that of one without.
      layers: Whether the sampler keeps each layer's parameters and cache "apart" or "stacked"; see `SamplerForm`.
      merge_adapters: Whether LoRA adapters are merged into a copy of their kernels, which takes the memory of these
        kernels; False reads base and adapters in place.

    Raises:
      UserError: A number is out of range.
    """

    slots: Count = 64
    context: Count = 512
    block: Count = 32
    wanted: Share = 0.25
    windows: Sequence[Count] = ()
    decode_rows: Sequence[Count] = ()
    append_rows: Sequence[Count] = ()
    append_tokens: Sequence[Count] = (32, 128)
    gather_parameters: bool = False
    drafts: Amount = 0
    least_tokens_per_pass: NonNegative = 1.25
    layers: LayersForm = "auto"
    merge_adapters: bool = True

    def __post_init__(self):
        check_fields(self)

    def form(self, config: DecoderConfig, mesh: AnyMesh) -> SamplerForm:
        """Returns the form in which a sampler of these settings keeps a decoder's parameters and cache."""
        return SamplerForm(config, mesh, self.gather_parameters, self.layers, self.merge_adapters and bool(config.lora))

    @property
    def largest_append(self) -> tuple[int, int]:
        """The most slots and the most tokens of one `append`."""
        return min(self.slots, max(self.append_rows or (self.slots,))), max(self.append_tokens)


@dataclasses.dataclass
class SamplerStatistics:
    """Counters since the sampler was created.

    Attributes:
      sampled_tokens: Tokens sampled by the policy.
      appended_tokens: Tokens that were prefilled: those of the environment, and contexts that were computed again.
      append_positions: Positions computed for that, padding included.
      append_seconds: Time spent appending, forks included, until the devices had finished.
      decode_seconds: Time spent decoding.
      drafted_tokens: Tokens that were drafted for verification.
      accepted_drafts: Drafted tokens that were sampled.
      decode_steps: Steps of the decode loop.
      slot_steps: Decode steps x computed slots: without drafts, the largest possible number of sampled tokens.
      compiled_shapes: Compiled functions so far, those of earlier samplers of the same sizes included.
    """

    sampled_tokens: int = 0
    appended_tokens: int = 0
    append_positions: int = 0
    append_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    decode_steps: int = 0
    slot_steps: int = 0
    compiled_shapes: int = 0

    @property
    def occupancy(self) -> float:
        """Share of slot-steps that sampled."""
        return (self.sampled_tokens - self.accepted_drafts) / max(1, self.slot_steps)
