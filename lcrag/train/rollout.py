"""Rollouts: samples and scores the episodes of a step on this process's lanes, and gives all processes all of them.

A lane is a sampler with its own devices, slots and copy of the parameters. The groups of a step are divided among the
lanes of all processes before anything is sampled, and the shapes of a lane's arrays depend on its own episodes only.
With the same number of lanes and devices, a run is therefore bit-identical on any number of processes.
"""

import dataclasses
import functools
import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeAlias

import gin
import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from lcrag.collectives import allgather_bytes, is_collective, without_collectives
from lcrag.data.questions import Coupled, Question, fault_of
from lcrag.episodes import EpisodeRecord, Programs, Runner
from lcrag.episodes.runner import WAIT_SECONDS, Abandoned
from lcrag.errors import Count, UserError, typed
from lcrag.policy import Policy
from lcrag.policy.parameters import hand_over, lane_config, lane_meshes
from lcrag.retrieval import SearchableCollections
from lcrag.runs.display import ProgressDisplay
from lcrag.runs.processes import raise_stopped
from lcrag.sampling import Sampler, SlotSampler
from lcrag.train.method import Episode, Method, ProgramOf, grouped, without_variance


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
    count: Count = 1
    tensor: Count = 1  # devices of a lane over which its parameters are sharded; slots are divided among the others
    # Devices that sample, with one lane only; None: the policy's. Parameters are copied to others directly, not through
    # the host.
    mesh: Mesh | None = None

    def __post_init__(self):
        if self.mesh is not None and (self.count > 1 or jax.process_count() > 1):
            raise UserError(
                f"Lanes.mesh gives sampling devices of its own, which takes one lane of one process, but Lanes.count is"
                f" {self.count} and the processes are {jax.process_count()}: set Lanes.mesh to None"
            )

    def single(self) -> "Lanes":
        """Returns one lane on all devices, for commands that run few episodes."""
        return dataclasses.replace(self, count=1, tensor=1)

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


# What a lane sampled and scored, and what that took: the seconds of its phases ("seconds/rollout") and the increase of
# its sampler's counters.
LaneResult: TypeAlias = tuple[list[Episode], dict[str, float]]


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

    def sample(
        self, groups: Sequence[Coupled], first_number: int, *, step: int, display: ProgressDisplay
    ) -> list[LaneResult] | Exception:
        """Samples and scores this process's share of groups to learn from, for `join`.

        With several lanes it does not communicate with other processes and may run on any thread; it then returns the
        exception that ended sampling. An episode's number selects its random stream; `step` is the one that learns from
        the episodes.
        """
        numbers = itertools.count(first_number)
        programs = [
            [(question, self.program(question), next(numbers)) for question in self.method.prompts([group])]
            for group in groups
        ]
        shares = self._shares(groups, programs)
        total, finished = sum(map(len, shares.values())), itertools.count(1)
        display.phase("rollout", 0, total)

        def show(record: EpisodeRecord) -> None:
            """Shows how many episodes have finished; rewards are computed after the last one."""
            if (number := next(finished)) < total:
                display.phase("rollout", number, total)
            else:
                display.phase("rewards")

        return self._run(shares, functools.partial(self.method.score, step=step), show)

    def answer(
        self, programs: Programs, finished: Callable[[EpisodeRecord], None], **settings: Any
    ) -> list[LaneResult] | Exception:
        """Samples programs that are not learned from, the same in every process, numbered differently; for `join`.

        `finished` is called with the record of every episode of this process; `settings` replace fields of the runner,
        such as `temperature`.
        """
        shares = self._shares([(question,) for question, _, _ in programs], [[program] for program in programs])
        unscored = lambda records: [Episode(record=record, group="", rewards={}) for record in records]  # noqa: E731
        return self._run(shares, unscored, finished, **settings)

    def _shares(self, groups: Sequence[Coupled], programs: Sequence[Programs]) -> dict[int, list[Any]]:
        """Returns the programs of each of this process's lanes; `programs` are those of each group."""
        shares: dict[int, list[Any]] = {lane: [] for lane in self.runners}
        for of_group, lane in zip(programs, assign_lanes(groups, self.lane_count), strict=True):
            if lane in shares:
                shares[lane] += of_group
        return shares

    def _run(
        self,
        shares: Mapping[int, Programs],
        score: Callable[[Sequence[EpisodeRecord]], list[Episode]],
        finished: Callable[[EpisodeRecord], None],
        **settings: Any,
    ) -> list[LaneResult] | Exception:
        one_at_a_time = threading.Lock()

        def sample(lane: int) -> LaneResult:
            started, sampler = time.monotonic(), self.runners[lane].sampler
            before = dataclasses.replace(sampler.statistics)
            runner = self._running[lane] = dataclasses.replace(self.runners[lane], **settings)
            records: list[EpisodeRecord] = []
            for record in runner.stream(shares[lane], between=self._between):
                records.append(record)
                with one_at_a_time:
                    finished(record)
            records.sort(key=lambda record: record.episode)
            rolled_out = time.monotonic()
            episodes = score(records)
            increase = {name: value - getattr(before, name) for name, value in vars(sampler.statistics).items()}
            return episodes, {
                "seconds/rollout": rolled_out - started,
                "seconds/retrieval_wait": runner.statistics.retrieval_wait_seconds,  # a part of the rollout
                "seconds/rewards": time.monotonic() - rolled_out,
                "seconds/append": increase.pop("append_seconds"),
                "seconds/decode": increase.pop("decode_seconds"),
                **increase,
                "compiled_shapes": sampler.statistics.compiled_shapes,  # from the start
            }

        if self.lane_count == 1:
            return [sample(0)]

        def alone(lane: int) -> LaneResult:
            with without_collectives():
                return sample(lane)

        # The lanes in parallel; if one fails or a signal is received, all are abandoned.
        pool = futures.ThreadPoolExecutor(len(self.runners), thread_name_prefix="lane")
        try:
            lanes = [pool.submit(alone, lane) for lane in self.runners]
            running = set(lanes)
            while running:
                ended, running = futures.wait(running, WAIT_SECONDS, futures.FIRST_EXCEPTION)
                for lane in ended:
                    lane.result()
                raise_stopped()
            return [lane.result() for lane in lanes]
        except Exception as failure:  # the other processes must hear of it before it is raised
            self.abandon()
            return failure
        except BaseException:
            self.abandon()
            raise
        finally:
            pool.shutdown()

    def join(self, lanes: list[LaneResult] | Exception) -> tuple[list[Episode], dict[str, float]]:
        """Returns the episodes of all lanes of all processes, by number, and what sampling them took.

        Seconds are those of the slowest lane, counters those of all. All processes call it at the same point. Raises
        what ended sampling in this process, or a UserError if another process failed.
        """
        if jax.process_count() > 1 and self.lane_count > 1:
            # The bytes are of processes of this run, which pickle may trust; arrays and floats keep their bits.
            content = lanes if isinstance(lanes, Exception) else pickle.dumps(lanes)
            lanes = list(itertools.chain(*map(pickle.loads, allgather_bytes("the rollout", content))))
        if isinstance(lanes, Exception):
            raise lanes
        sampled, measured = zip(*lanes, strict=True)
        slowest = max(measured, key=lambda taken: taken["seconds/rollout"] + taken["seconds/rewards"])
        counters = {name: sum(taken[name] for taken in measured) for name in slowest if "/" not in name}
        counters["compiled_shapes"] = max(taken["compiled_shapes"] for taken in measured)
        return sorted(itertools.chain(*sampled), key=lambda episode: episode.record.episode), slowest | counters


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

    def begin(self, step: int) -> list[LaneResult] | Exception:
        """Samples only this process's share of the first rollout, as a thread may do with several processes."""
        groups = self.draw(step=step)
        first = groups[: len(groups) // self.max_rollouts]
        return self.rollouts.sample(first, step * self.max_episodes, step=step, display=self.display)

    def sample(
        self, step: int, begun: list[LaneResult] | Exception | None = None
    ) -> tuple[list[Episode], list[dict[str, float]]]:
        """Samples a step whose first rollout may have `begun`; returns its episodes and what each rollout took.

        Episodes without a score are not `kept` for the update. With dynamic sampling, neither are groups without
        variance, unless no group has any.
        """
        groups, episodes, measured = self.draw(step=step), list[Episode](), list[dict[str, float]]()
        place, missing = 0, len(groups) // self.max_rollouts
        while len(measured) < self.max_rollouts and missing > 0 and place < len(groups):
            # Rollout and rewards.
            number, drawn = step * self.max_episodes + len(episodes), groups[place : place + missing]
            lanes = begun or self.rollouts.sample(drawn, number, step=step, display=self.display)
            begun, place = None, place + missing
            sampled, taken = self.rollouts.join(lanes)
            # Advantages, and how many groups still lack them.
            if not episodes or any(episode.scored for episode in sampled):  # a later rollout may be one group
                self.rollouts.method.set_advantages(sampled)
            every = grouped(sampled)
            scored = (group for group in every if any(episode.scored for episode in group))
            # A drawn question has a group for each of its prompts where these have baselines of their own.
            missing -= sum(not without_variance(group) for group in scored) * len(drawn) // len(every)
            episodes += sampled
            measured.append(taken)
        flat = {group[0].group for group in grouped(episodes) if without_variance(group)}
        dropped = flat if self.max_rollouts > 1 and len(flat) < len(grouped(episodes)) else set()
        for episode in episodes:
            episode.kept = episode.scored and episode.group not in dropped
        return episodes, measured
