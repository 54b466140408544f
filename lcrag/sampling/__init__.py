"""Sampling: contexts are kept in device slots, sampled in jitted blocks and stopped by an automaton over bytes.

Public:
  generate: Continues a list of prompts once; the simplest way to sample.
  SlotSampler, Sampler, SamplerStatistics: Multi-turn sampling in slots, its settings and its counters.
  continue_contexts: Continues many contexts over a sampler's slots.
  SamplingParameters, Sampled, FinishReason: How to continue a context, and the result.
"""

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
