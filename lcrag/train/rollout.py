"""Rollouts: samples and scores the episodes of a step on this process's lanes, and gives all processes all of them.

A lane is a sampler with its own devices, slots and copy of the parameters. The groups of a step are divided among the
lanes of all processes before anything is sampled, and the shapes of a lane's arrays depend on its own episodes only.
With the same number of lanes and devices, a run is therefore bit-identical on any number of processes.
"""

import dataclasses
import functools
import itertools
import json
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, TypeAlias

import gin
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, PyTree

from lcrag.data.batches import Coupled
from lcrag.episodes import EpisodeRecord, Programs, Runner
from lcrag.episodes.agreement import allgather_bytes, is_collective, without_collectives
from lcrag.errors import UserError, typed
from lcrag.policy import Policy
from lcrag.policy.lanes import hand_over, lane_config, lane_meshes
from lcrag.retrieval import SearchableCollections
from lcrag.sampling import Sampler, SamplerConfig, SamplerStatistics
from lcrag.train.checks import check_models
from lcrag.train.episode import Episode, GroupStatistics, kept_for_update
from lcrag.train.method import Method

Progress: TypeAlias = Callable[[int, int], None]  # (finished, all) episodes
PHASES = ("rollout", "retrieval_wait", "rewards")


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lanes:
    """How rollouts use the devices.

    Attributes:
      sampler: Settings of the samplers, whose slots the lanes share.
      runner: Makes the runner of a lane from its sampler, tokenizer, search and seed: `@Runner` in gin files.
      count: Number of lanes. Each samples a share of the groups on a share of the devices, within one process. 1: one
        lane over all devices of the policy, which all processes run together. With more lanes than devices, lanes share
        devices: the host works for one lane while another lane decodes.
      tensor: Devices of a lane over which its parameters are sharded (tensor parallelism); slots are divided among the
        others.
      mesh: Devices that sample, with one lane only; None: the policy's devices. Parameters are copied to other devices
        directly, not through the host.

    Raises:
      UserError: a number is out of range, or `mesh` is set with several lanes or processes.
    """

    sampler: SamplerConfig
    runner: Callable[..., Runner]
    count: int = 1
    tensor: int = 1
    mesh: Mesh | None = None

    def __post_init__(self):
        if self.count < 1 or self.tensor < 1:
            raise UserError(f"Lanes.count is {self.count} and Lanes.tensor {self.tensor}: each must be 1 or more")
        if self.mesh is not None and (self.count > 1 or jax.process_count() > 1):
            raise UserError(
                f"Lanes.mesh gives sampling devices of its own, which takes one lane of one process, but Lanes.count is"
                f" {self.count} and the processes are {jax.process_count()}: set Lanes.mesh to None"
            )

    def lane_sampler(self) -> SamplerConfig:
        """Returns the sampler settings of one lane: its share of the slots and of the compiled row counts.

        Raises:
          UserError: the number of slots is not a multiple of the number of lanes.
        """
        if self.sampler.slots % self.count:
            raise UserError(
                f"Sampler.slots is {self.sampler.slots}, which {self.count} lanes cannot share evenly: make it a"
                " multiple of Lanes.count"
            )
        return dataclasses.replace(
            self.sampler,
            slots=self.sampler.slots // self.count,
            append_rows=tuple(-(-rows // self.count) for rows in self.sampler.append_rows),
            decode_rows=tuple(-(-rows // self.count) for rows in self.sampler.decode_rows),
        )


@dataclasses.dataclass(kw_only=True)
class Lane:
    """A lane of this process, and its index among the lanes of all processes."""

    number: int
    sampler: Sampler
    runner: Runner


@dataclasses.dataclass(kw_only=True)
class LaneResult:
    """What one lane sampled: its episodes, seconds of each of `PHASES`, and the increase of its sampler's counters."""

    lane: int
    episodes: list[Episode]
    seconds: dict[str, float]
    statistics: SamplerStatistics


@dataclasses.dataclass(kw_only=True)
class Share:
    """The episodes of this process's lanes, or the exception that prevented them.

    Attributes:
      lanes: Results of this process's lanes.
      failure: The exception; None: sampling succeeded.
    """

    lanes: Sequence[LaneResult] = ()
    failure: Exception | None = None


@dataclasses.dataclass(kw_only=True)
class Measured:
    """Seconds of each of `PHASES` in the slowest lane, and the counters of all lanes together; sums over rollouts.

    "retrieval_wait" is included in "rollout".
    """

    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    statistics: SamplerStatistics = dataclasses.field(default_factory=SamplerStatistics)

    def add(self, lanes: Sequence[LaneResult]) -> None:
        """Adds one rollout."""
        slowest = max(lanes, key=lambda each: each.seconds["rollout"] + each.seconds["rewards"])
        self.seconds = {phase: self.seconds[phase] + slowest.seconds[phase] for phase in PHASES}
        before, added = vars(self.statistics), {}
        for name, value in before.items():
            increases = [getattr(lane.statistics, name) for lane in lanes]
            if name == "compiled_shapes":  # counted from the start, and shared by lanes of the same sizes
                added[name] = max(increases)
            elif name.endswith("_seconds"):  # lanes work at the same time
                added[name] = value + getattr(slowest.statistics, name)
            else:
                added[name] = value + sum(increases)
        self.statistics = SamplerStatistics(**added)

    def metrics(self) -> dict[str, float | int]:
        """Returns the metrics for `metrics.jsonl`."""
        counters = self.statistics
        return {f"seconds/{phase}": taken for phase, taken in self.seconds.items()} | {
            "seconds/append": counters.append_seconds,
            "seconds/decode": counters.decode_seconds,
            "tokens_per_second/sampled": counters.sampled_tokens / self.seconds["rollout"],
            "slots/occupancy": counters.occupancy,
            "append/filled": counters.appended_tokens / max(1, counters.append_positions),
            "compiled_shapes": counters.compiled_shapes,
        }


class Rollouts:
    """Samples and scores the episodes of groups on the lanes of this process.

    Args:
      lanes: Number and devices of the lanes, settings of samplers and runners.
      policy: The policy; its parameters are copied to several lanes, and used without a copy by a single lane.
      collections: The collections to search, which all lanes of a process share.
      method: Program, reward and coupling.
      seed: Seed of sampling.

    Attributes:
      runner: Runner of this process's first lane, whose settings all lanes have.
      program: Builds the program of a question.
      languages: Languages of the collections.

    Raises:
      UserError: the devices or slots cannot be divided evenly among the lanes, or a model of the runner cannot be
        loaded.
    """

    def __init__(self, lanes: Lanes, policy: Policy, collections: SearchableCollections, method: Method, seed: int):
        self.method, self.policy, self.lane_count = method, policy, lanes.count
        self.languages, self.program = collections.languages, method.on(collections.languages)
        self._abandoned = threading.Event()
        parts = {"tokenizer": policy.tokenizer, "search": collections.search, "seed": seed}
        if lanes.count == 1:
            self._meshes = []
            sampler = Sampler(policy.config, policy.params, policy.tokenizer, lanes.sampler, lanes.mesh or policy.mesh)
            # Processes that run one lane together must call its sampler at the same points, so they wait for searches.
            waits = {"wait_for_searches": True} if is_collective() else {}
            self._lanes = [Lane(number=0, sampler=sampler, runner=lanes.runner(sampler=sampler, **parts, **waits))]
        else:
            self._meshes = lane_meshes(policy.mesh, lanes.count, lanes.tensor)
            config, settings = lane_config(policy.config), lanes.lane_sampler()
            self._lanes = []
            for number, params in self._handed_over(policy.params).items():
                sampler = Sampler(config, params, policy.tokenizer, settings, self._meshes[number])
                with without_collectives():
                    runner = lanes.runner(sampler=sampler, **parts)
                self._lanes.append(Lane(number=number, sampler=sampler, runner=runner))
        self.runner, self._running = self._lanes[0].runner, [lane.runner for lane in self._lanes]
        check_models(self.runner.completers.values())

    def _handed_over(self, params: PyTree) -> dict[int, PyTree]:
        """Returns the parameters for each lane of this process, by its number; all processes call it together.

        With several lanes they are copies, with one lane the parameters themselves.
        """
        if self.lane_count == 1:
            return {0: params}
        handed = hand_over(self.policy.config, params, self.policy.mesh, self._meshes)
        return {number: each for number, each in enumerate(handed) if each is not None}

    def set_params(self, params: PyTree) -> None:
        """Replaces the parameters with which the lanes sample; all processes call it at the same point."""
        for lane in self._lanes if self.lane_count > 1 else ():
            lane.sampler.drop_params()  # there may be no memory for two copies
        handed = self._handed_over(params)
        for lane in self._lanes:
            lane.sampler.set_params(handed[lane.number])

    def written_tokens(self) -> int:
        """Returns how many tokens this process's lanes have written in the latest rollout, while it runs."""
        return sum(runner.written_tokens() for runner in self._running)

    def abandon(self) -> None:
        """Stops the rollout that another thread samples, before its next block, and every later rollout."""
        self._abandoned.set()

    def sample(
        self, groups: Sequence[Coupled], first_number: int, *, step: int, policy_version: int, progress: Progress
    ) -> Share:
        """Samples and scores the episodes of this process's lanes.

        With several lanes it does not communicate with other processes and may run on any thread; exceptions are then
        raised later, by `join`.

        Args:
          groups: Coupled questions.
          first_number: Number of the first episode; an episode's number selects its random stream.
          step: Training step that learns from the episodes.
          policy_version: Number of updates that the parameters have received, for the records.
          progress: Called with (finished, all) episodes of this process, on any thread.
        """
        numbers = itertools.count(first_number)
        programs = [
            [(question, self.program(question), next(numbers)) for question in self.method.prompts([group])]
            for group in groups
        ]
        score = functools.partial(self.method.score, step=step)
        return self._sample(programs, groups, score, {}, policy_version=policy_version, progress=progress)

    def join(self, share: Share, measured: Measured) -> list[Episode]:
        """Returns the episodes of all lanes of all processes by number, with advantages; all call it at one point.

        Args:
          share: The result of `sample`.
          measured: Receives the times and counters.

        Raises:
          UserError: no episode can be scored, or another process failed.
          Exception: the exception that ended sampling in this process.
        """
        lanes = self._exchange(share)
        measured.add(lanes)
        episodes = in_order(lanes)
        self.method.set_advantages(episodes)
        return episodes

    def run(self, programs: Programs, *, progress: Progress, **settings: Any) -> tuple[list[EpisodeRecord], float]:
        """Runs programs that are not learned from on all lanes of all processes.

        Args:
          programs: All programs, the same list in every process; their numbers differ.
          progress: Called with (finished, all) episodes of this process.
          settings: Fields of the runner to replace, such as `temperature`.

        Returns:
          (the records by number, seconds of the slowest lane).
        """
        groups = [(question,) for question, _, _ in programs]
        unscored = lambda records: [Episode(record=each, group="", rewards={}) for each in records]  # noqa: E731
        share = self._sample([[each] for each in programs], groups, unscored, settings, progress=progress)
        lanes = self._exchange(share)
        return [each.record for each in in_order(lanes)], max(lane.seconds["rollout"] for lane in lanes)

    def gather(self, texts: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """Returns for each program the texts that its lane collected; `texts` are those of this process's lanes."""
        if self.lane_count == 1:
            return list(texts)
        parts = allgather_bytes("what the searches found", json.dumps(texts).encode())
        return [max(each, key=len) for each in zip(*map(json.loads, parts), strict=True)]

    def _sample(
        self,
        programs: Sequence[Programs],
        groups: Sequence[Coupled],
        score: Callable[[Sequence[EpisodeRecord]], list[Episode]],
        settings: dict[str, Any],
        *,
        progress: Progress,
        policy_version: int = 0,
    ) -> Share:
        """Runs and scores the programs of this process's lanes; `programs` are those of each group."""
        lane_of = assign_lanes(groups, self.lane_count)
        parts = [
            [each for of_group, lane in zip(programs, lane_of, strict=True) if lane == n.number for each in of_group]
            for n in self._lanes
        ]
        finished, total, lock = [0] * len(parts), sum(map(len, parts)), threading.Lock()

        def work(index: int) -> LaneResult:
            lane, started = self._lanes[index], time.monotonic()
            before = dataclasses.replace(lane.sampler.statistics)
            runner = self._running[index] = dataclasses.replace(lane.runner, **settings) if settings else lane.runner
            records: list[EpisodeRecord] = []
            for record in runner.stream(parts[index], policy_version=policy_version, abandoned=self._abandoned):
                records.append(record)
                with lock:
                    finished[index] += 1
                    progress(sum(finished), total)
            records.sort(key=lambda record: record.episode)
            rolled_out = time.monotonic()
            episodes = score(records)
            return LaneResult(
                lane=lane.number,
                episodes=episodes,
                seconds={
                    "rollout": rolled_out - started,
                    "retrieval_wait": runner.statistics.retrieval_wait_seconds,
                    "rewards": time.monotonic() - rolled_out,
                },
                statistics=statistics_since(lane.sampler.statistics, before),
            )

        if self.lane_count == 1:
            return Share(lanes=[work(0)])
        try:
            return Share(lanes=self._on_threads(work))
        except Exception as failure:  # the other processes must hear of it before it is raised
            return Share(failure=failure)

    def _on_threads(self, work: Callable[[int], LaneResult]) -> list[LaneResult]:
        """Runs the lanes in parallel; if one fails or a signal is received, all are abandoned."""

        def by_itself(index: int) -> LaneResult:
            with without_collectives():
                return work(index)

        pool = futures.ThreadPoolExecutor(len(self._lanes), thread_name_prefix="lane")
        try:
            running = [pool.submit(by_itself, index) for index in range(len(self._lanes))]
            done, _ = futures.wait(running, return_when=futures.FIRST_EXCEPTION)
            for each in done:
                each.result()
            return [each.result() for each in running]
        except BaseException:
            self.abandon()
            raise
        finally:
            pool.shutdown()

    def _exchange(self, share: Share) -> list[LaneResult]:
        """Returns the results of all lanes of all processes, by lane."""
        if jax.process_count() == 1 or self.lane_count == 1:
            if share.failure is not None:
                raise share.failure
            return list(share.lanes)
        # The bytes are of processes of this run, which pickle may trust; arrays and floats keep their bits.
        contents = allgather_bytes("the rollout", share.failure or pickle.dumps(share.lanes))
        return sorted(itertools.chain(*map(pickle.loads, contents)), key=lambda each: each.lane)


def assign_lanes(groups: Sequence[Coupled], count: int) -> list[int]:
    """Returns the lane of each group; all groups of a coupled question have the same lane.

    Coupled questions are assigned in order of decreasing size, each to the lane with the fewest prompts so far. If all
    have the same size, group n is sampled by lane n mod count.
    """
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group[0].coupling, []).append(place)
    load, lane_of = [0] * count, [0] * len(groups)
    for members in sorted(places.values(), key=lambda members: -sum(len(groups[place]) for place in members)):
        lane = load.index(min(load))
        for place in members:
            lane_of[place] = lane
            load[lane] += len(groups[place])
    return lane_of


def in_order(lanes: Sequence[LaneResult]) -> list[Episode]:
    """Returns the episodes of all lanes, ordered by number."""
    return sorted((each for lane in lanes for each in lane.episodes), key=lambda each: each.record.episode)


def statistics_since(now: SamplerStatistics, before: SamplerStatistics) -> SamplerStatistics:
    """Returns the increase of the counters; `compiled_shapes` is that of `now`."""
    increase = {name: value - getattr(before, name) for name, value in vars(now).items()}
    return SamplerStatistics(**increase | {"compiled_shapes": now.compiled_shapes})


@dataclasses.dataclass(kw_only=True)
class Sampled:
    """The episodes of a step, those that the update learns from, and how they were sampled."""

    episodes: list[Episode]
    kept: Bool[np.ndarray, "episodes"]
    rollouts: int
    measured: Measured


def sample_step(
    rollouts: Rollouts,
    groups: Sequence[Coupled],
    *,
    step: int,
    policy_version: int,
    max_rollouts: int,
    episodes_per_step: int,
    show: Callable[..., None],
    first_share: Share | None = None,
) -> Sampled:
    """Samples the episodes of a step, in one rollout or as many as dynamic sampling needs.

    Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11) drops the groups of a rollout without variance,
    and the next rollout samples as many others, in the order in which they were drawn. The step may stay too small
    after the last rollout. An episode's number is its index among all episodes that the step may draw.

    Args:
      rollouts: Samples and scores.
      groups: The step's groups in order, `max_rollouts` times as many as the update needs.
      step: The step.
      policy_version: Number of updates of the sampler's parameters.
      max_rollouts: Maximum number of rollouts; 1: no dynamic sampling.
      episodes_per_step: Maximum number of episodes of a step.
      show: Shows (phase, finished, all).
      first_share: What this process has sampled of the first rollout ahead.
    """
    episodes: list[Episode] = []
    measured, place, missing, done = Measured(), 0, len(groups) // max_rollouts, 0
    while done < max_rollouts and missing > 0 and place < len(groups):
        if first_share is None:
            first_share = rollouts.sample(
                groups[place : place + missing],
                step * episodes_per_step + len(episodes),
                step=step,
                policy_version=policy_version,
                progress=functools.partial(show_rollout, show),
            )
        new, first_share = rollouts.join(first_share, measured), None
        episodes += new
        done, place = done + 1, place + missing
        flat = GroupStatistics.of(new).without_variance
        missing -= len({each.group for each, equal in zip(new, flat, strict=True) if each.scored and not equal})
    kept = kept_for_update(episodes, dynamic_sampling=max_rollouts > 1)
    return Sampled(episodes=episodes, kept=kept, rollouts=done, measured=measured)


def show_rollout(show: Callable[..., None], finished: int, total: int) -> None:
    """Shows the progress of a rollout; its rewards are computed once all episodes have finished."""
    show("rollout", finished, total) if finished < total else show("rewards")
