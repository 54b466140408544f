"""Rollouts: samples and scores the episodes of a step on this process's lanes, and gives all processes all of them.

A lane is a sampler with its own devices, slots and copy of the parameters. The groups of a step are divided among the
lanes of all processes before anything is sampled, and the shapes of a lane's arrays depend on its own episodes only.
With the same number of lanes and devices, a run is therefore bit-identical on any number of processes.
"""

import dataclasses
import functools
import itertools
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

import gin
import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from lcrag.collectives import allgather_bytes, is_collective, without_collectives
from lcrag.data.questions import Coupled, Question, fault_of
from lcrag.episodes import EpisodeRecord, Programs, Runner
from lcrag.episodes.runner import WAIT_SECONDS, Abandoned
from lcrag.errors import UserError, typed
from lcrag.policy import Policy
from lcrag.policy.parameters import hand_over, lane_config, lane_meshes
from lcrag.retrieval import SearchableCollections
from lcrag.runs.display import ProgressDisplay
from lcrag.runs.processes import raise_stopped
from lcrag.sampling import Sampler, SamplerStatistics, SlotSampler
from lcrag.train.method import Episode, GroupStatistics, Method, ProgramOf, kept_for_update

PHASES = ("rollout", "retrieval_wait", "rewards")


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lanes:
    """How rollouts use the devices.

    Each lane samples a share of the groups on a share of the devices, within one process. A single lane is on all
    devices of the policy, and all processes run it together. With more lanes than devices, lanes share devices: the
    host works for one lane while another lane decodes.
    """

    sampler: Sampler  # the lanes share its slots
    runner: Callable[..., Runner]  # makes a lane's runner from its sampler, tokenizer, search and seed: `@Runner`
    count: int = 1
    tensor: int = 1  # devices of a lane over which its parameters are sharded; slots are divided among the others
    # Devices that sample, with one lane only; None: the policy's. Parameters are copied to others directly, not through
    # the host.
    mesh: Mesh | None = None

    def __post_init__(self):
        if self.count < 1 or self.tensor < 1:
            raise UserError(f"Lanes.count is {self.count} and Lanes.tensor {self.tensor}: each must be 1 or more")
        if self.mesh is not None and (self.count > 1 or jax.process_count() > 1):
            raise UserError(
                f"Lanes.mesh gives sampling devices of its own, which takes one lane of one process, but Lanes.count is"
                f" {self.count} and the processes are {jax.process_count()}: set Lanes.mesh to None"
            )

    def lane_sampler(self) -> Sampler:
        """Returns the sampler settings of one lane: its share of the slots and of the compiled row counts."""
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
class LaneResult:
    """What one lane sampled and scored, and what that took."""

    lane: int  # index among the lanes of all processes
    episodes: list[Episode]  # by number
    seconds: dict[str, float]  # of each of `PHASES`; "retrieval_wait" is part of "rollout"
    statistics: SamplerStatistics  # increase of the sampler's counters; `compiled_shapes` counts from the start


@dataclasses.dataclass
class Rollout:
    """A rollout on this process's lanes; nothing is sampled before `finished` is read."""

    total: int  # number of this process's episodes
    finished: Iterator[EpisodeRecord] = iter(())  # samples and scores, and yields each record as its episode finishes
    lanes: list[LaneResult] = dataclasses.field(default_factory=list)  # complete once `finished` is exhausted
    failure: Exception | None = None  # what ended sampling on several lanes, until `Rollouts.join` raises it


class Rollouts:
    """Samples and scores episodes on the lanes of this process, which share the collections.

    The policy's parameters are copied to several lanes, and used without a copy by a single lane. `runners` has the
    runner of each of this process's lanes, by the index of the lane among those of all processes.
    """

    def __init__(self, lanes: Lanes, policy: Policy, collections: SearchableCollections, method: Method, seed: int):
        self.method, self.policy, self.lane_count = method, policy, lanes.count
        self.languages, self.program = collections.languages, method.program_for(collections.languages)
        self._abandoned = threading.Event()
        self.runners: dict[int, Runner] = {}
        parts = {"tokenizer": policy.tokenizer, "search": collections.search, "seed": seed}
        if lanes.count == 1:
            sampler = SlotSampler(
                policy.config, policy.params, policy.tokenizer, lanes.sampler, lanes.mesh or policy.mesh
            )
            runner = lanes.runner(sampler=sampler, **parts)
            # Processes that run one lane together must call its sampler at the same points, so they wait for searches.
            self.runners[0] = dataclasses.replace(runner, wait_for_searches=True) if is_collective() else runner
        else:
            self._meshes = lane_meshes(policy.mesh, lanes.count, lanes.tensor)
            config, settings = lane_config(policy.config), lanes.lane_sampler()
            for lane, params in self._handed_over(policy.params).items():
                sampler = SlotSampler(config, params, policy.tokenizer, settings, self._meshes[lane])
                with without_collectives():
                    self.runners[lane] = lanes.runner(sampler=sampler, **parts)
        self._running = dict(self.runners)
        for model in self.runner.completers.values():
            getattr(model, "check", lambda: None)()  # raises a UserError if it cannot be loaded

    @property
    def runner(self) -> Runner:
        """The runner of this process's first lane, whose settings all lanes have."""
        return next(iter(self.runners.values()))

    def check(self, questions: Iterable[Question], program: ProgramOf | None = None) -> None:
        """Checks questions before their episodes are run; see `check_questions`."""
        check_questions(questions, self.method, self.languages, self.runner, program)

    def _handed_over(self, params: PyTree) -> dict[int, PyTree]:
        """Returns copies of the parameters for this process's lanes; all processes call it together."""
        handed = hand_over(self.policy.config, params, self.policy.mesh, self._meshes)
        return {lane: copy for lane, copy in enumerate(handed) if copy is not None}

    def set_params(self, params: PyTree, policy_version: int = 0) -> None:
        """Replaces the parameters with which the lanes sample; all processes call it at the same point.

        `policy_version` is written into the episodes; 0 if they are not learned from.
        """
        if self.lane_count == 1:
            self.runner.sampler.set_params(params, policy_version)
            return
        for runner in self.runners.values():
            runner.sampler.drop_params()  # there may be no memory for two copies
        for lane, copy in self._handed_over(params).items():
            self.runners[lane].sampler.set_params(copy, policy_version)

    def written_tokens(self) -> int:
        """Returns how many tokens this process's lanes have written in the latest rollout, while it runs."""
        return sum(runner.statistics.written_tokens for runner in self._running.values())

    def abandon(self) -> None:
        """Stops the rollout that another thread samples, before its next block, and every later rollout."""
        self._abandoned.set()

    def _between(self) -> None:
        """Ends the sampling between two passes: after a signal, or because the rollout is abandoned."""
        raise_stopped()
        if self._abandoned.is_set():
            raise Abandoned

    def begin(self, groups: Sequence[Coupled], first_number: int, *, step: int) -> Rollout:
        """Returns the rollout of groups to learn from.

        With several lanes it does not communicate with other processes and may run on any thread. An episode's number
        selects its random stream; `step` is the one that learns from the episodes.
        """
        numbers = itertools.count(first_number)
        programs = [
            [(question, self.program(question), next(numbers)) for question in self.method.prompts([group])]
            for group in groups
        ]
        score = functools.partial(self.method.score, step=step)
        return self._begin(groups, programs, score)

    def begin_unscored(self, programs: Programs, **settings: Any) -> Rollout:
        """Returns the rollout of programs that are not learned from, the same in every process, numbered differently.

        `settings` replace fields of the runner, such as `temperature`.
        """
        groups = [(question,) for question, _, _ in programs]
        unscored = lambda records: [Episode(record=record, group="", rewards={}) for record in records]  # noqa: E731
        return self._begin(groups, [[program] for program in programs], unscored, **settings)

    def _begin(
        self,
        groups: Sequence[Coupled],
        programs: Sequence[Programs],
        score: Callable[[Sequence[EpisodeRecord]], list[Episode]],
        **settings: Any,
    ) -> Rollout:
        """Returns the rollout of this process's share of the groups; `programs` are those of each group."""
        shares: dict[int, list[Any]] = {lane: [] for lane in self.runners}
        for of_group, lane in zip(programs, assign_lanes(groups, self.lane_count), strict=True):
            if lane in shares:
                shares[lane] += of_group
        rollout = Rollout(total=sum(map(len, shares.values())))

        def sample(lane: int) -> Iterator[EpisodeRecord]:
            started, sampler = time.monotonic(), self.runners[lane].sampler
            before = dataclasses.replace(sampler.statistics)
            runner = self._running[lane] = dataclasses.replace(self.runners[lane], **settings)
            records: list[EpisodeRecord] = []
            for record in runner.stream(shares[lane], between=self._between):
                records.append(record)
                yield record
            records.sort(key=lambda record: record.episode)
            rolled_out = time.monotonic()
            episodes = score(records)
            increase = {name: value - getattr(before, name) for name, value in vars(sampler.statistics).items()}
            increase["compiled_shapes"] = sampler.statistics.compiled_shapes
            seconds = {
                "rollout": rolled_out - started,
                "retrieval_wait": runner.statistics.retrieval_wait_seconds,
                "rewards": time.monotonic() - rolled_out,
            }
            statistics = SamplerStatistics(**increase)
            rollout.lanes.append(LaneResult(lane=lane, episodes=episodes, seconds=seconds, statistics=statistics))

        rollout.finished = sample(0) if self.lane_count == 1 else self._on_threads(rollout, sample)
        return rollout

    def _on_threads(
        self, rollout: Rollout, sample: Callable[[int], Iterator[EpisodeRecord]]
    ) -> Iterator[EpisodeRecord]:
        """Runs the lanes in parallel; if one fails or a signal is received, all are abandoned."""
        events: queue.SimpleQueue[EpisodeRecord | futures.Future[None]] = queue.SimpleQueue()

        def run(lane: int) -> None:
            with without_collectives():
                for record in sample(lane):
                    events.put(record)

        pool = futures.ThreadPoolExecutor(len(self.runners), thread_name_prefix="lane")
        try:
            for lane in self.runners:
                pool.submit(run, lane).add_done_callback(events.put)
            running = len(self.runners)
            while running:
                try:
                    event = events.get(timeout=WAIT_SECONDS)
                except queue.Empty:
                    raise_stopped()
                    continue
                if isinstance(event, EpisodeRecord):
                    yield event
                else:
                    event.result()
                    running -= 1
        except Exception as failure:  # the other processes must hear of it before it is raised
            self.abandon()
            rollout.failure = failure
        except BaseException:
            self.abandon()
            raise
        finally:
            pool.shutdown()

    def join(self, rollout: Rollout) -> list[LaneResult]:
        """Returns the results of all lanes of all processes, by lane; all processes call it at the same point.

        Raises what ended sampling in this process, or a UserError if another process failed.
        """
        results = [rollout.lanes]
        if jax.process_count() > 1 and self.lane_count > 1:
            # The bytes are of processes of this run, which pickle may trust; arrays and floats keep their bits.
            contents = allgather_bytes("the rollout", rollout.failure or pickle.dumps(rollout.lanes))
            results = list(map(pickle.loads, contents))
        elif rollout.failure is not None:
            raise rollout.failure
        return sorted(itertools.chain(*results), key=lambda result: result.lane)


def check_questions(
    questions: Iterable[Question],
    method: Method,
    languages: Sequence[str],
    runner: Runner,
    program: ProgramOf | None = None,
) -> None:
    """Checks questions before their episodes are run.

    There must be questions, collections in their languages and the tools that their programs offer, and the prompts
    must fit the context. `program` builds the program of a question, by default the method's.
    """
    questions, program = list(questions), program or method.program_for(languages)
    if not questions:
        raise UserError("there is no question to ask: name another split, other languages or other files")
    for question in questions:
        if fault := fault_of(question.text):
            raise UserError(f"the question {question.coupling} in {question.language} {fault}: {question.text[:60]!r}")
    missing = sorted({question.language for question in questions} - set(languages))
    if missing and method.native_collections:
        raise UserError(
            f"there are questions in {', '.join(missing)} but collections only in {', '.join(languages)}:"
            " build the missing ones or ask in fewer languages"
        )
    runner.check([(question, program(question), 0) for question in questions])


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
    return sorted((episode for lane in lanes for episode in lane.episodes), key=lambda episode: episode.record.episode)


@dataclasses.dataclass(frozen=True)
class StepSampler:
    """Samples the episodes of a training step, in as many rollouts as dynamic sampling needs.

    Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11) drops the groups of a rollout without variance,
    and the next rollout samples as many others, in the order in which they were drawn. The step may stay too small
    after the last rollout. An episode's number is its index among all episodes that the run may draw.
    """

    rollouts: Rollouts
    draw: Callable[..., Sequence[Coupled]]  # the groups of a `step`, `max_rollouts` times as many as its update needs
    max_rollouts: int
    max_episodes: int  # of a step
    display: ProgressDisplay

    def begin(self, step: int) -> Rollout:
        """Samples only this process's share of the first rollout, as a thread may do with several processes."""
        groups = self.draw(step=step)
        rollout = self.rollouts.begin(groups[: len(groups) // self.max_rollouts], step * self.max_episodes, step=step)
        show_rollout(rollout, self.display)
        return rollout

    def sample(self, step: int, begun: Rollout | None = None) -> list[list[LaneResult]]:
        """Samples a step whose first rollout may have `begun`; returns the lanes of each rollout."""
        groups, done = self.draw(step=step), list[list[LaneResult]]()
        place, number, missing = 0, step * self.max_episodes, len(groups) // self.max_rollouts
        while len(done) < self.max_rollouts and missing > 0 and place < len(groups):
            # Rollout and rewards.
            rollout = begun or self.rollouts.begin(groups[place : place + missing], number, step=step)
            begun, place = None, place + missing
            show_rollout(rollout, self.display)
            done.append(self.rollouts.join(rollout))

            # Advantages, and how many groups still lack them.
            sampled = in_order(done[-1])
            number += len(sampled)
            self.rollouts.method.set_advantages(sampled)
            flat = GroupStatistics.of(sampled).without_variance
            varied = zip(sampled, flat, strict=True)
            missing -= len({episode.group for episode, equal in varied if episode.scored and not equal})
        episodes = episodes_of(done)
        kept = kept_for_update(episodes, dynamic_sampling=self.max_rollouts > 1)
        for episode, keep in zip(episodes, kept, strict=True):
            episode.kept = bool(keep)
        return done


def episodes_of(rollouts: Sequence[Sequence[LaneResult]]) -> list[Episode]:
    """Returns the episodes of a step, ordered by number."""
    return [episode for lanes in rollouts for episode in in_order(lanes)]


def show_rollout(rollout: Rollout, display: ProgressDisplay) -> None:
    """Samples a rollout and shows how many episodes have finished; rewards are computed after the last one."""
    display.phase("rollout", 0, rollout.total)
    for finished, _ in enumerate(rollout.finished, start=1):
        if finished < rollout.total:
            display.phase("rollout", finished, rollout.total)
        else:
            display.phase("rewards")
