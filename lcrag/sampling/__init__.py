"""Sampling: contexts are kept in device slots, sampled in jitted blocks and stopped by an automaton over bytes."""

from lcrag.sampling.sampler import (
    FinishReason,
    Sampled,
    Sampler,
    SamplerStatistics,
    SamplingParameters,
    SlotSampler,
    continue_contexts,
    generate,
)
