"""Division of rollouts into lanes: number of lanes, settings of their samplers, and assignment of groups to lanes."""

import collections
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import TypeAlias

import gin
import jax
from jax.sharding import Mesh

from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.episodes import Program
from lcrag.episodes.runner import Progress
from lcrag.errors import UserError
from lcrag.limits import Count, check_fields
from lcrag.runs.processes import distributed_state
from lcrag.sampling import SamplerConfig

Programs: TypeAlias = Sequence[tuple[Question, Program, int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """Settings of lanes, which sample the episodes of a rollout in parallel.

    Attributes:
      count: Number of lanes. Each lane samples a share of the groups on a share of the devices, within one process.
        1: one lane over all devices of the policy, which all processes run together. With more lanes than devices,
        lanes share devices: the host works for one lane while another lane decodes.
      tensor: Devices of a lane over which its parameters are sharded (tensor parallelism); slots are divided among the
        others.
      mesh: Devices that sample, with one lane only; None: the policy's devices. Parameters are copied to other devices
        directly, not through the host.
      stealing: Whether a lane takes the next groups from a queue of all lanes whenever it has room (work stealing),
        instead of a fixed share. The assignment of groups to lanes, and with it shapes and rounding, then depends on
        timing.

    Raises:
      UserError: a number is out of range, `stealing` is set with one lane, or `mesh` is set with several lanes or
        processes.
    """

    count: Count = 1
    tensor: Count = 1
    mesh: Mesh | None = None
    stealing: bool = False

    def __post_init__(self):
        check_fields(self)
        if self.stealing and self.count == 1:
            raise UserError(
                "Lanes.stealing is True, but Lanes.count is 1, and a single lane has no other to take groups from: set"
                " Lanes.count to 2 or more, or Lanes.stealing to False"
            )
        if self.mesh is not None and (self.count > 1 or jax.process_count() > 1):
            raise UserError(
                f"Lanes.mesh gives sampling devices of its own, which takes one lane of one process, but Lanes.count is"
                f" {self.count} and the processes are {jax.process_count()}: set Lanes.mesh to None"
            )


configured_lanes = gin.external_configurable(LaneSettings, "Lanes", module="lcrag.sampling")


def lane_sampler(settings: SamplerConfig, count: int) -> SamplerConfig:
    """Returns the sampler settings of one lane: its share of the slots and of the compiled row counts.

    Raises:
      UserError: the number of slots is not a multiple of the number of lanes.
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


def coupled_groups(groups: Sequence[Coupled]) -> list[list[int]]:
    """Returns the indices of the groups of each coupled question, which one lane samples; the most prompts first."""
    places: dict[str, list[int]] = collections.defaultdict(list)
    for place, group in enumerate(groups):
        places[group[0].coupling].append(place)
    return sorted(places.values(), key=lambda own: -sum(len(groups[place]) for place in own))


def assigned_lanes(groups: Sequence[Coupled], count: int) -> list[int]:
    """Returns the lane of each group; all groups of a coupled question have the same lane.

    Coupled questions are assigned in order of decreasing size, each to the lane with the fewest prompts so far. If all
    have the same size, the assignment is round-robin.
    """
    load, lane_of = [0] * count, [0] * len(groups)
    for own in coupled_groups(groups):
        lane = load.index(min(load))
        for place in own:
            lane_of[place] = lane
            load[lane] += len(groups[place])
    return lane_of


class GroupQueue:
    """A thread-safe queue of a rollout's groups, shared by the lanes of all processes.

    Every process holds all groups; the position of the next one is a counter in the store of `jax.distributed`.

    Args:
      groups: The programs of each group, in the order of the queue.
      lanes: Number of lanes; one call of `take` returns at most `len(groups) / lanes` groups, rounded up.
      name: Name of the counter, different for every rollout.
    """

    def __init__(self, groups: Sequence[Programs], lanes: int, name: str):
        self._groups, self._most, self._empty = groups, -(-len(groups) // lanes), False
        self._begun = SharedCount(name)

    def take(self, room: int) -> list[tuple[Question, Program, int]]:
        """Returns the programs of the next groups, as many groups as fill `room` slots; empty at the end."""
        programs: list[tuple[Question, Program, int]] = []
        for _ in range(self._most):
            if self._empty or len(programs) >= room:
                break
            if (turn := self._begun.add(1) - 1) >= len(self._groups):
                self._empty = True
                break
            programs += self._groups[turn]
        return programs


class SharedCount:
    """A thread-safe counter that all processes share; it starts at 0 and must stay below 2^31.

    Args:
      name: Name of the counter: the same in all processes, and never reused.
    """

    def __init__(self, name: str):
        self._name, self._lock, self._number = name, threading.Lock(), 0

    def add(self, more: int) -> int:
        """Adds `more`, which may be 0, and returns the new value."""
        if jax.process_count() > 1:
            return distributed_state().client.key_value_increment(self._name, more)
        with self._lock:
            self._number += more
            return self._number


class LaneProgress:
    """Reports the summed progress of lanes that run on their own threads.

    Args:
      progress: Called with (finished, total) episodes of all lanes; None: progress is not reported.
      total: Number of episodes of all lanes.
    """

    def __init__(self, progress: Progress | None, total: int):
        self._progress, self._total, self._lock = progress, total, threading.Lock()
        self._finished: dict[int, int] = {}

    def __call__(self, lane: int, finished: int, total: int) -> None:
        """Reports that `finished` episodes of a lane have finished; its own total is ignored."""
        with self._lock:
            self._finished[lane] = finished
            if self._progress is not None:
                self._progress(sum(self._finished.values()), self._total)
