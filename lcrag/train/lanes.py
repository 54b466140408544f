"""Rollouts on lanes: each lane samples whole groups on its own devices, and all processes receive all episodes.

The shapes of a lane's arrays depend on its own episodes only. With the same number of lanes and devices, a run is
therefore bit-identical on any number of processes.
"""

import dataclasses
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from lcrag.composition.components import configured_sampler, make_runner, make_sampler
from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, Runner
from lcrag.episodes.agreement import alone, exchanged
from lcrag.episodes.runner import Progress, RolloutStatistics
from lcrag.limits import Seed
from lcrag.policy import Policy
from lcrag.policy.lanes import hand_over, lane_config, lane_meshes
from lcrag.retrieval import SearchableCollections
from lcrag.sampling import Sampler, SamplerStatistics
from lcrag.train.lane_episodes import (
    LaneEpisodes,
    Share,
    all_lanes,
    in_order,
    packed_lanes,
    slowest,
    spent,
    summed,
    together,
)
from lcrag.train.lane_plan import (
    GroupQueue,
    LaneProgress,
    Programs,
    assigned_lanes,
    configured_lanes,
    coupled_groups,
    lane_sampler,
)
from lcrag.train.method import Method
from lcrag.train.scoring import Rewards, Scored

PHASES = ("rollout", "retrieval_wait", "rewards")


@dataclasses.dataclass(kw_only=True)
class Lane:
    """A lane of this process.

    Attributes:
      number: Index of the lane among the lanes of all processes.
      sampler: The lane's sampler.
      runner: Runs episode programs with this sampler.
    """

    number: int
    sampler: Sampler
    runner: Runner


class Abandoned(Exception):
    """Raised in a lane whose rollout is abandoned because another lane failed or a signal was received."""


class Lanes:
    """Samples and scores the episodes of groups on all lanes.

    Args:
      policy: The policy; its parameters are copied to several lanes, and used without a copy by a single lane.
      collections: The collections to search, which all lanes of a process share.
      method: Program, reward and coupling.
      seed: Seed of sampling.

    Attributes:
      policy: The policy.
      program: Builds the program of a question.
      count: Number of lanes in all processes.
      local: The lanes of this process.
      sampler: Sampler of this process's first lane.
      runner: Runs programs on all lanes; all processes call it with the same programs.
      seconds: Time of each of `PHASES` in the slowest lane of the latest rollout, in seconds; "retrieval_wait" is
        included in "rollout".
      statistics: Counters of all lanes.

    Raises:
      UserError: the devices or slots cannot be divided evenly among the lanes; see also `make_runner`.
    """

    def __init__(self, policy: Policy, collections: SearchableCollections, method: Method, seed: Seed):
        settings = configured_lanes()
        self.count, self._stealing = settings.count, settings.stealing
        self._method, self.policy = method, policy
        self.program = method.on(collections.languages)
        self.seconds, self.statistics = dict.fromkeys(PHASES, 0.0), SamplerStatistics()
        self._abandoned, self._rollouts = threading.Event(), itertools.count()
        self._meshes: list[Mesh] = []
        if self.count == 1:
            self.sampler = make_sampler(policy, settings.mesh)
            self.runner = make_runner(self.sampler, policy, collections, seed)
            self.local = [Lane(number=0, sampler=self.sampler, runner=self.runner)]
            return
        self._meshes = lane_meshes(policy.mesh, self.count, settings.tensor)
        config, sizes = lane_config(policy.config), lane_sampler(configured_sampler(), self.count)
        self.local = []
        for number, params in self.handed_over(policy.params).items():
            sampler = Sampler(config, params, policy.tokenizer, sizes, self._meshes[number])
            with alone():
                runner = make_runner(sampler, policy, collections, seed)
            self.local.append(Lane(number=number, sampler=sampler, runner=runner))
        self.sampler = self.local[0].sampler
        own = {
            field.name: getattr(self.local[0].runner, field.name) for field in dataclasses.fields(Runner) if field.init
        }
        self.runner = LanesRunner(lanes=self, **own)

    def handed_over(self, params: PyTree) -> dict[int, PyTree]:
        """Returns the parameters for each lane of this process, by its number; all processes call it together.

        With several lanes they are copies, with one lane the parameters themselves.
        """
        if self.count == 1:
            return {0: params}
        handed = hand_over(self.policy.config, params, self.policy.mesh, self._meshes)
        return {number: each for number, each in enumerate(handed) if each is not None}

    def set_params(self, params: PyTree) -> None:
        """Replaces the parameters with which the lanes sample; all processes call it at the same point."""
        for lane in self.local if self.count > 1 else ():
            lane.sampler.drop_params()
        handed = self.handed_over(params)
        for lane in self.local:
            lane.sampler.set_params(handed[lane.number])

    def written_tokens(self) -> int:
        """Returns how many tokens this process's lanes have written in the latest rollout, while it runs."""
        return sum(lane.runner.written_tokens() for lane in self.local)

    def abandon(self) -> None:
        """Stops the rollout that another thread samples, before its next block, and every later rollout."""
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
        """Samples and scores the episodes of groups; returns those of all lanes, in the order of `Method.prompts`.

        All processes call it with the same arguments. Afterwards `seconds` holds the times of this rollout, and
        `statistics` the counters of all lanes since they were created.

        Args:
          groups: Coupled questions.
          first_number: Number of the first episode; an episode's number selects its random stream.
          policy_version: Number of updates that the parameters have received, for the records.
          step: Training step that learns from the episodes; rewards may depend on it.
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
        """Samples and scores the episodes of this process's lanes; see `roll_out` for the arguments.

        With several lanes it may run on any thread and does not communicate with other processes. Exceptions are
        raised later, by `join`.
        """
        prompts = [self._method.prompts([group]) for group in groups]
        numbers = itertools.count(first_number)
        programs = [[(each, self.program(each), next(numbers)) for each in own] for own in prompts]
        scores = functools.partial(self._method.rewards, step=step)
        runners = [lane.runner for lane in self.local]
        return self._sampled(programs, groups, runners, scores, policy_version=policy_version, progress=progress)

    def run(
        self, programs: Sequence[tuple[Question, Program, int]], settings: Mapping[str, Any], **options: Any
    ) -> list[EpisodeRecord]:
        """Runs programs on all lanes; see `Runner.run`.

        Args:
          programs: All programs, the same list in every process; their numbers differ.
          settings: Fields of the lanes' runners to replace for this call.
          options: Arguments of `Runner.run`: `policy_version` and `progress`.
        """
        groups = [(question,) for question, _, _ in programs]
        runners = [dataclasses.replace(lane.runner, **settings) for lane in self.local]
        share = self._sampled(
            [[each] for each in programs], groups, runners, lambda records: Rewards(values={}), **options
        )
        return in_order(self._exchanged(share))[0]

    def _sampled(
        self,
        programs: Sequence[Programs],
        groups: Sequence[Coupled],
        runners: Sequence[Runner],
        scores: Callable[[Sequence[EpisodeRecord]], Rewards],
        *,
        progress: Progress | None = None,
        policy_version: int = 0,
    ) -> Share:
        """Runs and scores the programs of this process's lanes; `programs` are those of each group."""
        questions = {number: question for own in programs for question, _, number in own}
        if self._stealing:
            whole = [[each for place in own for each in programs[place]] for own in coupled_groups(groups)]
            shared = GroupQueue(whole, self.count, f"lcrag/rollout/{next(self._rollouts)}")
            parts: list[GroupQueue | Programs] = [shared for _ in self.local]
            shown = LaneProgress(progress, sum(map(len, programs)))
        else:
            lane_of = assigned_lanes(groups, self.count)
            own = [[each for each, lane in zip(programs, lane_of, strict=True) if lane == n.number] for n in self.local]
            parts = [list(itertools.chain(*each)) for each in own]
            shown = LaneProgress(progress, sum(len(part) for each in own for part in each))
        work = [
            functools.partial(
                self._rolled_out, lane, runner, part, scores, functools.partial(shown, lane.number), policy_version
            )
            for lane, runner, part in zip(self.local, runners, parts, strict=True)
        ]
        if self.count == 1:
            return Share(questions=questions, lanes=[work[0]()])
        try:
            return Share(questions=questions, lanes=self._on_threads(work))
        except Exception as failure:
            return Share(questions=questions, failure=failure)

    def _on_threads(self, work: Sequence[Callable[[], LaneEpisodes]]) -> list[LaneEpisodes]:
        """Runs the lanes in parallel; if one fails or a signal is received, all are abandoned."""

        def by_itself(own: Callable[[], LaneEpisodes]) -> LaneEpisodes:
            with alone():
                return own()

        pool = futures.ThreadPoolExecutor(len(work), thread_name_prefix="lane")
        try:
            running = [pool.submit(by_itself, each) for each in work]
            done, _ = futures.wait(running, return_when=futures.FIRST_EXCEPTION)
            for each in done:
                each.result()
            return [each.result() for each in running]
        except BaseException:
            self.abandon()
            raise
        finally:
            pool.shutdown()

    def _raise_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise Abandoned

    def _rolled_out(
        self,
        lane: Lane,
        runner: Runner,
        programs: GroupQueue | Programs,
        scores: Callable[[Sequence[EpisodeRecord]], Rewards],
        progress: Progress,
        policy_version: int,
    ) -> LaneEpisodes:
        """Runs and scores the given programs on one lane, or those that the lane takes from a queue."""
        before, started = dataclasses.replace(lane.sampler.statistics), time.monotonic()
        options: dict[str, Any] = {"policy_version": policy_version, "progress": progress}
        if isinstance(programs, GroupQueue):
            records = self._stolen(runner, programs, **options)
        else:
            records = runner.run(programs, between=self._raise_if_abandoned, **options)
        rolled_out = time.monotonic()
        rewards = scores(records)
        return LaneEpisodes(
            lane=lane.number,
            records=records,
            rewards=rewards,
            seconds={
                "rollout": rolled_out - started,
                "retrieval_wait": runner.statistics.retrieval_wait_seconds,
                "rewards": time.monotonic() - rolled_out,
            },
            statistics=spent(lane.sampler.statistics, before),
        )

    def _stolen(self, runner: Runner, shared: GroupQueue, **options: Any) -> list[EpisodeRecord]:
        """Runs groups from a queue until it is empty, beginning new ones whenever slots are free."""
        records: list[EpisodeRecord] = []
        begun = 0

        def begin_more() -> None:
            nonlocal begun
            self._raise_if_abandoned()
            more = shared.take(runner.sampler.slots - begun + len(records))
            begun += len(more)
            runner.add(more)

        runner.run((), between=begin_more, finished=records.append, **options)
        return sorted(records, key=lambda record: record.episode)

    def join(self, share: Share) -> Scored:
        """Returns the scored episodes of all lanes of all processes, which call it at the same point.

        Raises:
          UserError: no episode can be scored, or another process failed.
          Exception: the exception that ended sampling in this process.
        """
        return self._method.scored(*in_order(self._exchanged(share)))

    def gathered(self, share: Share) -> Sequence[LaneEpisodes]:
        """Returns the episodes of all lanes of all processes; see `join` for the errors."""
        if jax.process_count() > 1 and self.count > 1:
            content = packed_lanes(share.lanes) if share.failure is None else share.failure
            return all_lanes(share, exchanged("the rollout", content))
        if share.failure is not None:
            raise share.failure
        return share.lanes

    def _exchanged(self, share: Share) -> Sequence[LaneEpisodes]:
        """Returns the episodes of all lanes of all processes, and updates `seconds` and `statistics`."""
        lanes = self.gathered(share)
        self.seconds, self.statistics = dict(slowest(lanes).seconds), summed([together(lanes)], self.statistics)
        return lanes


@dataclasses.dataclass(kw_only=True)
class LanesRunner(Runner):
    """Runs programs on all lanes of all processes, with this runner's limits and random streams.

    Attributes:
      lanes: The lanes.
    """

    lanes: Lanes

    def run(self, programs: Sequence[tuple[Question, Program, int]], **options: Any) -> list[EpisodeRecord]:
        """Runs programs to their end; see `Runner.run`. All processes call it with the same programs."""
        settings = {name: getattr(self, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
        records = self.lanes.run(programs, settings, **options)
        self.statistics = RolloutStatistics(
            seconds=self.lanes.seconds["rollout"], retrieval_wait_seconds=self.lanes.seconds["retrieval_wait"]
        )
        return records

    def written_tokens(self) -> int:
        """Returns how many tokens this process's lanes have written in the latest rollout, while it runs."""
        return self.lanes.written_tokens()


def of_all_lanes(runner: Runner, found: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Returns what the searches of each program found in all processes; `found` is this process's part."""
    if not isinstance(runner, LanesRunner):
        return found
    parts = exchanged("what the searches found", json.dumps(found).encode())
    return [max(each, key=len) for each in zip(*map(json.loads, parts), strict=True)]
