"""Rollouts shared out over lanes: each samples whole groups on its own devices, and all processes get all episodes.

A lane's shapes depend on its own episodes only. A run with one number of lanes therefore gives the same bits on any
number of processes with as many devices together.
"""

import collections
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import gin
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from lcrag.app.composition.components import configured_sampler, make_runner, make_sampler
from lcrag.app.composition.lane_episodes import LaneEpisodes, Share, all_lanes, in_order, packed_lanes, summed
from lcrag.app.composition.method import Method, ProgramOf
from lcrag.app.composition.scoring import Scored
from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.episodes import Runner
from lcrag.episodes.agreement import alone, exchanged
from lcrag.episodes.runner import Progress
from lcrag.errors import UserError
from lcrag.limits import Count, Seed, check_fields
from lcrag.policy import Policy
from lcrag.policy.lanes import hand_over, lane_config, lane_meshes
from lcrag.retrieval import SearchableCollections
from lcrag.sampling import Sampler, SamplerConfig, SamplerStatistics

PHASES = ("rollout", "retrieval_wait", "rewards")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """How rollouts are shared out.

    Attributes:
      count: Number of lanes, of which each samples a share of the groups on its share of the devices, in one process.
        1: one lane over all devices of the policy, which all processes run together. More lanes than devices share
        these: the host's work of one then takes place while another's decodes.
      tensor: Devices of a lane over which its parameters are divided; its other devices divide its slots.

    Raises:
      UserError: a number is out of range.
    """

    count: Count = 1
    tensor: Count = 1

    def __post_init__(self):
        check_fields(self)


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


@dataclasses.dataclass(kw_only=True)
class Lane:
    """One lane of this process.

    Attributes:
      number: Its place among all lanes.
      sampler: Its slots.
      runner: Runs programs over them.
    """

    number: int
    sampler: Sampler
    runner: Runner


class Abandoned(Exception):
    """A lane's rollout was abandoned, because another lane failed or a signal came."""


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


class Lanes:
    """Samples and scores the episodes of some groups, over all lanes.

    Args:
      policy: Its parameters are copied to the lanes; with one lane they are used as they are.
      collections: What programs search; all lanes of a process share them.
      method: Program, reward and coupling.
      program: Builds a question's program.
      seed: Seed of sampling.

    Raises:
      UserError: the devices or the slots do not divide into lanes, or as `make_runner`.
    """

    def __init__(
        self, policy: Policy, collections: SearchableCollections, method: Method, program: ProgramOf, seed: Seed
    ):
        settings = configured_lanes()
        self.count, self._method, self._program, self._policy = settings.count, method, program, policy
        self.seconds, self.statistics = dict.fromkeys(PHASES, 0.0), SamplerStatistics()
        self._abandoned = threading.Event()
        self._meshes: list[Mesh] = []
        if self.count == 1:
            sampler = make_sampler(policy)
            self.lanes = [Lane(number=0, sampler=sampler, runner=make_runner(sampler, policy, collections, seed))]
            return
        self._meshes = lane_meshes(policy.mesh, self.count, settings.tensor)
        config, sizes = lane_config(policy.config), lane_sampler(configured_sampler(), self.count)
        self.lanes = []
        for number, params in self._handed_over(policy.params).items():
            sampler = Sampler(config, params, policy.tokenizer, sizes, self._meshes[number])
            with alone():
                runner = make_runner(sampler, policy, collections, seed)
            self.lanes.append(Lane(number=number, sampler=sampler, runner=runner))

    def _handed_over(self, params: PyTree) -> dict[int, PyTree]:
        """Returns the parameters of this process's lanes by their numbers."""
        handed = hand_over(self._policy.config, params, self._policy.mesh, self._meshes)
        return {number: each for number, each in enumerate(handed) if each is not None}

    @property
    def sampler(self) -> Sampler:
        """The sampler of this process's first lane."""
        return self.lanes[0].sampler

    @property
    def runner(self) -> Runner:
        """The runner of this process's first lane."""
        return self.lanes[0].runner

    def set_params(self, params: PyTree) -> None:
        """Samples with other parameters from now on; all processes call it at the same point."""
        if self.count == 1:
            self.sampler.set_params(params)
            return
        for lane in self.lanes:
            lane.sampler.drop_params()
        handed = self._handed_over(params)
        for lane in self.lanes:
            lane.sampler.set_params(handed[lane.number])

    def written_tokens(self) -> int:
        """Returns how many tokens this process's lanes have written in the latest rollout, while it runs."""
        return sum(lane.runner.written_tokens() for lane in self.lanes)

    def abandon(self) -> None:
        """Ends the rollout that another thread samples, before its next block, and all later ones."""
        self._abandoned.set()

    def roll_out(
        self,
        groups: Sequence[Coupled],
        first_number: int,
        *,
        policy_version: int,
        step: int,
        progress: Progress | None = None,
    ) -> Scored:
        """Samples the episodes of some groups and scores them: all, in the order of `Method.prompts`.

        All processes call it with the same arguments. What it took is in `seconds` (that of the slowest lane, by phase)
        and `statistics` (of all lanes since they were made).

        Args:
          groups: Coupled questions.
          first_number: Number of the first episode, which names its random stream; the others follow.
          policy_version: Steps that the parameters have learned, for the records.
          step: Step that learns from them; rewards may depend on it.
          progress: Called with (finished, total) of this process's episodes, on any thread.

        Raises:
          UserError: no episode can be scored, or another process failed.
        """
        return self.join(self.sample(groups, first_number, policy_version=policy_version, step=step, progress=progress))

    def sample(
        self,
        groups: Sequence[Coupled],
        first_number: int,
        *,
        policy_version: int,
        step: int,
        progress: Progress | None = None,
    ) -> Share:
        """Samples and scores the episodes of this process's lanes; the arguments are those of `roll_out`.

        With several lanes it may run on any thread, and asks no other process; `join` raises its exceptions.
        """
        questions = dict(enumerate(self._method.prompts(groups), first_number))
        options = {"policy_version": policy_version, "step": step}
        if self.count == 1:
            own = self._rolled_out(self.lanes[0], questions, progress=progress, **options)
            return Share(questions=questions, lanes=[own])
        sizes = [len(group) * self._method.samples for group in groups]
        lane_of = dict(zip(questions, np.repeat(dealt(groups, self.count), sizes).tolist(), strict=True))
        parts = {each.number: {n: q for n, q in questions.items() if lane_of[n] == each.number} for each in self.lanes}
        shown = Shown(progress, sum(map(len, parts.values())))
        work = [
            functools.partial(
                self._alone, lane, parts[lane.number], progress=functools.partial(shown, place), **options
            )
            for place, lane in enumerate(self.lanes)
        ]
        try:
            return Share(questions=questions, lanes=self._on_threads(work))
        except Exception as failure:
            return Share(questions=questions, failure=failure)

    def _on_threads(self, work: Sequence[Callable[[], LaneEpisodes]]) -> list[LaneEpisodes]:
        """Runs the lanes at the same time, and abandons all if one fails or a signal ends the wait."""
        pool = futures.ThreadPoolExecutor(len(work), thread_name_prefix="lane")
        try:
            running = [pool.submit(each) for each in work]
            done, _ = futures.wait(running, return_when=futures.FIRST_EXCEPTION)
            for each in done:
                each.result()
            return [each.result() for each in running]
        except BaseException:
            self.abandon()
            raise
        finally:
            pool.shutdown()

    def _alone(self, *arguments, **options) -> LaneEpisodes:
        with alone():
            return self._rolled_out(*arguments, **options)

    def _raise_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise Abandoned

    def _rolled_out(
        self, lane: Lane, questions: dict[int, Question], *, policy_version: int, step: int, **options: Any
    ) -> LaneEpisodes:
        """Samples and scores the episodes of one lane, given by their numbers."""
        before, started = dataclasses.replace(lane.sampler.statistics), time.monotonic()
        programs = [(question, self._program(question), number) for number, question in questions.items()]
        records = lane.runner.run(programs, policy_version=policy_version, between=self._raise_if_abandoned, **options)
        rolled_out = time.monotonic()
        rewards = self._method.rewards(records, step)
        now = lane.sampler.statistics
        spent = {name: value - getattr(before, name) for name, value in vars(now).items()}
        return LaneEpisodes(
            lane=lane.number,
            records=records,
            rewards=rewards,
            seconds={
                "rollout": rolled_out - started,
                "retrieval_wait": lane.runner.statistics.retrieval_wait_seconds,
                "rewards": time.monotonic() - rolled_out,
            },
            statistics=SamplerStatistics(**spent | {"compiled_shapes": now.compiled_shapes}),
        )

    def join(self, share: Share) -> Scored:
        """Returns the scored episodes of all lanes of all processes, which call it at the same point.

        Raises:
          UserError: no episode can be scored, or another process failed.
          Exception: what prevented this process's share.
        """
        lanes = share.lanes
        if self.count > 1:
            content = packed_lanes(share.lanes) if share.failure is None else share.failure
            lanes = all_lanes(share, exchanged("the rollout", content))
        self.seconds = {phase: max(each.seconds[phase] for each in lanes) for phase in PHASES}
        self.statistics = summed([each.statistics for each in lanes], self.statistics)
        return self._method.scored(*in_order(lanes))
