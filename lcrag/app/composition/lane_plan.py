"""How rollouts are shared out: the number of lanes, their parts of the sampler, and who samples which groups."""

import collections
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import TypeAlias

import gin
import jax
from jax.sharding import Mesh

from lcrag.app.runs.processes import distributed_state
from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.episodes import Program
from lcrag.episodes.runner import Progress
from lcrag.errors import UserError
from lcrag.limits import Count, check_fields
from lcrag.sampling import SamplerConfig

Programs: TypeAlias = Sequence[tuple[Question, Program, int]]


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
      stealing: A lane takes whole groups from a queue of all lanes whenever it has room, instead of those dealt to it.
        Who samples what, and with it shapes and rounding, then depends on time.

    Raises:
      UserError: a number is out of range, one lane would steal, or several lanes or processes have a mesh of their own.
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


def units(groups: Sequence[Coupled]) -> list[list[int]]:
    """Returns the places of the groups that one lane samples together, those of one coupled question; longest first."""
    places: dict[str, list[int]] = collections.defaultdict(list)
    for place, group in enumerate(groups):
        places[group[0].coupling].append(place)
    return sorted(places.values(), key=lambda own: -sum(len(groups[place]) for place in own))


def dealt(groups: Sequence[Coupled], count: int) -> list[int]:
    """Returns the lane of each group: the longest group first, each to the lane with the fewest prompts so far.

    Groups of equal size go round: group g to lane g mod `count`. Groups of one coupled question stay together.
    """
    load, lane_of = [0] * count, [0] * len(groups)
    for own in units(groups):
        lane = load.index(min(load))
        for place in own:
            lane_of[place] = lane
            load[lane] += len(groups[place])
    return lane_of


class GroupQueue:
    """Hands out the groups of a rollout to the lanes of all processes, each group once; thread-safe.

    Every process has the whole queue. They share a counter of `jax.distributed`, which says whose turn a group is.

    Args:
      groups: The programs of each group, in the order in which they are handed out.
      lanes: Number of lanes, of which none takes more than its share of the groups at once.
      name: Of the counter; that of no other rollout.
    """

    def __init__(self, groups: Sequence[Programs], lanes: int, name: str):
        self._groups, self._most, self._empty = groups, -(-len(groups) // lanes), False
        self._begun = SharedCount(name)

    def take(self, room: int) -> list[tuple[Question, Program, int]]:
        """Returns the programs of the next groups, as long as there is room for one more; none once all are taken."""
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
    """A number that all processes count up, from 0, below 2^31; thread-safe.

    Args:
      name: The same in all processes, and used once while they run.
    """

    def __init__(self, name: str):
        self._name, self._lock, self._number = name, threading.Lock(), 0

    def add(self, more: int) -> int:
        """Adds to the number, or reads it by adding 0; returns the new one."""
        if jax.process_count() > 1:
            return distributed_state().client.key_value_increment(self._name, more)
        with self._lock:
            self._number += more
            return self._number


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
