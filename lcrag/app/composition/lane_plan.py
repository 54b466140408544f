"""How rollouts are shared out: the number of lanes, their parts of the sampler, and who samples which groups."""

import collections
import dataclasses
import functools
import threading
from collections.abc import Sequence

import gin
import jax
from jax.sharding import Mesh

from lcrag.data.batches import Coupled
from lcrag.episodes.runner import Progress
from lcrag.errors import UserError
from lcrag.limits import Count, check_fields
from lcrag.sampling import SamplerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """How rollouts are shared out.

    Attributes:
      count: Number of lanes, of which each samples a share of the groups on its share of the devices, in one process.
        1: one lane over all devices of the policy, which all processes run together. More lanes than devices share
        these: the host's work of one then takes place while another's decodes.
      tensor: Devices of a lane over which its parameters are divided; its other devices divide its slots.
      mesh: Devices that sample, of one lane; None: those of the policy. Parameters reach other devices without a copy
        through the host.

    Raises:
      UserError: a number is out of range, or several lanes or processes have a mesh of their own.
    """

    count: Count = 1
    tensor: Count = 1
    mesh: Mesh | None = None

    def __post_init__(self):
        check_fields(self)
        if self.mesh is not None and (self.count > 1 or jax.process_count() > 1):
            raise UserError(
                f"Lanes.mesh gives sampling devices of its own, which takes one lane of one process, but Lanes.count is"
                f" {self.count} and the processes are {jax.process_count()}: set Lanes.mesh to None"
            )


configured_lanes = gin.external_configurable(LaneSettings, "Lanes", module="lcrag.sampling")


def lane_sampler(settings: SamplerConfig, count: int) -> SamplerConfig:
    """Returns the settings of the sampler of each lane: its share of the slots and of the rows that are compiled.

    Raises:
      UserError: the slots do not divide.
    """
    if settings.slots % count:
        raise UserError(
            f"Sampler.slots is {settings.slots}, which {count} lanes cannot share evenly: make it a multiple of"
            f" Lanes.count"
        )
    shared = functools.partial(_shared, count=count)
    return dataclasses.replace(
        settings,
        slots=settings.slots // count,
        append_rows=shared(settings.append_rows),
        decode_rows=shared(settings.decode_rows),
    )


def _shared(rows: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(-(-each // count) for each in rows)


def dealt(groups: Sequence[Coupled], count: int) -> list[int]:
    """Returns the lane of each group: the longest group first, each to the lane with the fewest prompts so far.

    Groups of equal size go round: group g to lane g mod `count`. Groups of one coupled question stay together.
    """
    sizes: collections.Counter[str] = collections.Counter()
    for group in groups:
        sizes[group[0].coupling] += len(group)
    load, lane_of = [0] * count, {}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        lane_of[name] = load.index(min(load))
        load[lane_of[name]] += size
    return [lane_of[group[0].coupling] for group in groups]


class Shown:
    """Adds up the progress of lanes, each on its own thread.

    Args:
      progress: Called with (finished, total) of all of them; None: nothing is.
      total: Number of their episodes.
    """

    def __init__(self, progress: Progress | None, total: int):
        self._progress, self._total, self._lock = progress, total, threading.Lock()
        self._finished: dict[int, int] = {}

    def __call__(self, lane: int, finished: int, total: int) -> None:
        """Shows how many of a lane's episodes have finished."""
        with self._lock:
            self._finished[lane] = finished
            if self._progress is not None:
                self._progress(sum(self._finished.values()), self._total)
