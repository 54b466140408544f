"""Sampling: contexts kept in device slots, sampled in jitted blocks, stopped by a byte automaton.

Public: `Sampler` and its `Generation` and `Sampled`, and `generate` for plain single-turn use.
"""

from lcrag.sampling.generate import generate
from lcrag.sampling.generation import Generation, Sampled
from lcrag.sampling.sampler import Sampler, SamplerStatistics

__all__ = [
    "Generation",
    "Sampled",
    "Sampler",
    "SamplerStatistics",
    "generate",
]
