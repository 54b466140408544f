"""Lanes as `compile` and `describe` see them: their number and settings, without samplers."""

import dataclasses

import gin

from lcrag.sampling import SamplerConfig
from lcrag.train.rollout import Lanes


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """Number of lanes and devices of a lane; see `Lanes`."""

    count: int = 1
    tensor: int = 1
    mesh: object = None


def configured_lanes() -> LaneSettings:
    """Returns the settings that gin binds."""
    bound = gin.get_bindings("Lanes", resolve_references=False)
    return LaneSettings(count=bound.get("count", 1), tensor=bound.get("tensor", 1), mesh=bound.get("mesh"))


def lane_sampler(settings: SamplerConfig, count: int) -> SamplerConfig:
    """Returns the sampler settings of one of several lanes."""
    return Lanes(sampler=settings, runner=print, count=count).lane_sampler()
