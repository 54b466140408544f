"""Sampling: contexts are kept in device slots, sampled in jitted blocks and stopped by an automaton over bytes.

Public:
  generate: Continues a list of prompts once; the simplest way to sample.
  Sampler, SamplerConfig, SamplerStatistics: Multi-turn sampling in slots, its settings and its counters.
  SlotSampler, continue_contexts: The interface of a sampler, and continuing many contexts over its slots.
  SamplingParameters, Sampled, FinishReason: How to continue a context, and the result.
"""

from lcrag.sampling.generate import SlotSampler, continue_contexts, generate
from lcrag.sampling.parameters import FinishReason, Sampled, SamplingParameters
from lcrag.sampling.sampler import Sampler
from lcrag.sampling.settings import SamplerConfig, SamplerStatistics
