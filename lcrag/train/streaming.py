"""Staleness above 1: lanes sample continuously, and each update uses the oldest finished groups."""

import threading
import time
from itertools import groupby
from types import TracebackType

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.episodes.agreement import alone
from lcrag.errors import UserError
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.train.admission import Admission
from lcrag.train.lane_episodes import LaneEpisodes, Share, in_order, since, together
from lcrag.train.lane_plan import SharedCount
from lcrag.train.lane_streams import LaneStream
from lcrag.train.lanes import Lanes
from lcrag.train.rollouts import StepBatch, StepEpisodes
from lcrag.train.schedule import (
    IdleTimes,
    InTurn,
    OneAhead,
    OwnParameters,
    Phase,
    end_thread,
    staleness_metrics,
)
from lcrag.train.scoring import Scored, joined
from lcrag.train.training_draw import TrainingDraw

UNDER_WAY = "under_way"  # entry of a checkpoint: running groups, padded with -1
LOOK_SECONDS = 0.05  # interval of reading the number of finished groups of other processes


class Streaming(InTurn):
    """The schedule of staleness above 1: lanes sample the groups that `Admission` starts; parameters change meanwhile.

    The groups of an update and their order depend on time. Several processes take the same decisions, because only
    exchanges change `Admission`. An exchange takes place once there are enough finished groups in all processes, which
    they count together, for a step. A checkpoint contains the numbers of the running groups; a continued run samples
    these again first.

    Args:
      lanes: Sample and score episodes.
      learner: Learns from them.
      draw: The groups of each step.
      staleness: Maximum number of updates between the start of an episode and the update that uses it.
      recompute_contexts: Whether new parameters recompute the contexts of running episodes.
    """

    def __init__(
        self, lanes: Lanes, learner: Learner, draw: TrainingDraw, staleness: int, recompute_contexts: bool = False
    ):
        super().__init__(lanes, learner, draw)
        self._idle = IdleTimes(samplers=len(lanes.local))
        self._staleness, self._copies = staleness, OwnParameters(lanes.policy, learner)
        self._replicated = NamedSharding(lanes.policy.mesh, PartitionSpec())
        self._admission = Admission(draw.couplings, staleness, last=0)
        self._changed = threading.Condition()  # of the streams
        self._finished, self._known = SharedCount("lcrag/finished_groups"), 0
        parts = lanes.program, self._changed, self._finished, self._idle
        self._streams = [LaneStream(lane, *parts, recompute=recompute_contexts) for lane in lanes.local]
        self._questions: dict[int, Question] = {}  # running episode -> its question
        self._group_of: dict[int, int] = {}  # running episode -> its group
        self._lane_of: dict[int, int] = {}  # group that is sampled -> its lane
        self._episodes: dict[int, LaneEpisodes] = {}  # group that has finished -> what was sampled
        self._counters: dict[int, LaneEpisodes] = {}  # lane -> counters since the start, as of its latest group
        self._reward_seconds = 0.0
        self._ready: list[int] = []

    @property
    def state(self) -> PyTree:
        under_way = self._admission.under_way
        numbers = np.full((self._staleness + 1) * self._draw.couplings, -1, np.int32)
        numbers[: len(under_way)] = under_way
        return {**vars(self._learner.state), UNDER_WAY: jax.device_put(numbers, self._replicated)}

    def restore(self, checkpoints: Checkpoints) -> int:
        step, restored = checkpoints.continue_from(self.state)
        under_way = jax.device_get(restored.pop(UNDER_WAY))
        self._learner.state = type(self._learner.state)(**restored)
        again = under_way[under_way >= 0].tolist()
        self._admission = Admission(self._draw.couplings, self._staleness, last=0, version=step, under_way=again)
        return step

    def begin(self, first: int, steps: int, phase: Phase) -> None:
        self._phase, self._admission.last = phase, steps * self._draw.couplings
        self._taken()
        self._order()
        for stream in self._streams:
            stream.start()

    def _order(self) -> None:
        """Gives the lanes the current parameters and the groups that start with them.

        Each group goes to the lane with the fewest running episodes; of equal ones, to the first.
        """
        load = [0] * self._lanes.count
        for group, lane in self._lane_of.items():
            load[lane] += len(self._prompts(group))
        orders: list[dict[int, list[tuple[int, Question]]]] = [{} for _ in load]
        for group in self._admission.begin():
            episodes, lane = self._prompts(group), load.index(min(load))
            load[lane] += len(episodes)
            orders[lane][group], self._lane_of[group] = episodes, lane
            self._questions |= episodes
            self._group_of |= {number: group for number, _ in episodes}
        trained = self._copies.whole(self._copies.trained()) if self._lanes.count == 1 else self._learner.params
        params, version = self._lanes.handed_over(trained), self._admission.version
        with self._changed:
            for each in self._streams:
                each.order(orders[each.number], params[each.number], version, complete=self._admission.all_begun)
            self._changed.notify_all()

    def _prompts(self, group: int) -> list[tuple[int, Question]]:
        """Returns (number, question) of a group's episodes, numbered as in the step that draws it."""
        step, place = divmod(group, self._draw.couplings)
        drawn, prompts = self._draw.groups(step), self._draw.method.prompts
        first = step * self._draw.episodes + len(prompts(drawn[:place]))
        return list(enumerate(prompts(drawn[place : place + 1]), first))

    def episodes(self, step: int) -> StepEpisodes:
        ready = None
        while ready is None:
            with self._idle.waiting("trainer"):
                self._wait_for(0 if self._admission.ready() else self._known + self._admission.missing)
            self._exchange()
            ready = self._admission.ready()
        self._ready = sorted(ready)
        self._phase("rewards")
        waited = time.monotonic() - self._taken_at - self._reward_seconds
        batch = StepBatch([self._draw.groups(n // len(ready))[n % len(ready)] for n in self._ready], most_rollouts=1)
        batch.add(self._scored(self._ready))
        lanes = [since(each, self._before.get(lane)) for lane, each in self._counters.items()]
        wait = max(each.seconds["retrieval_wait"] for each in lanes)
        return StepEpisodes(
            batch=batch,
            seconds={"rollout": waited, "retrieval_wait": wait, "rewards": self._reward_seconds},
            statistics=together(lanes),
        )

    def _wait_for(self, groups: int) -> None:
        """Waits until `groups` groups have finished since the start, in all processes, or sampling failed in one."""
        while self._finished.add(0) < groups:
            with self._changed:
                self._changed.wait(LOOK_SECONDS)

    def _exchange(self) -> None:
        """Exchanges the finished groups and their episodes between all processes."""
        with self._changed:
            failure = next((stream.failure for stream in self._streams if stream.failure), None)
            finished = [(stream, *own) for stream in self._streams for own in stream.take_finished().items()]
        share = Share(questions=self._questions, failure=failure)
        if failure is None:
            try:
                share.lanes = self._rewarded(finished)
            except Exception as error:
                share.failure = error
        with self._idle.waiting("trainer"):
            gathered = self._lanes.gathered(share)
        self._known += len(gathered)
        for each in gathered:
            group = self._group_of[each.records[0].episode]
            self._admission.finish(group)
            del self._lane_of[group]
            self._episodes[group], self._counters[each.lane] = each, each

    def _rewarded(self, finished: list[tuple[LaneStream, int, list[EpisodeRecord]]]) -> list[LaneEpisodes]:
        """Scores groups, those of one step of the draw together: no question occurs in it twice."""
        started, rewarded = time.monotonic(), []
        finished.sort(key=lambda each: each[1])
        for step, own in groupby(finished, key=lambda each: each[1] // self._draw.couplings):
            groups = list(own)
            with alone():
                rewards = self._draw.method.rewards([record for *_, records in groups for record in records], step)
            first = 0
            for stream, _, records in groups:
                part = slice(first, first := first + len(records))
                rewarded.append(stream.sampled(records, rewards.part(part)))
        self._reward_seconds += time.monotonic() - started
        return rewarded

    def _scored(self, groups: list[int]) -> Scored:
        """Returns finished groups with their advantages, those of each step of the draw as one rollout."""
        parts = []
        for _, own in groupby(groups, key=lambda group: group // self._draw.couplings):
            parts.append(self._draw.method.scored(*in_order([self._episodes[group] for group in own])))
        return joined(parts)

    def taken(self, step: int) -> None:
        self._admission.take(self._ready)
        for group in self._ready:
            for record in self._episodes.pop(group).records:
                del self._questions[record.episode], self._group_of[record.episode]
        self._taken()

    def _taken(self) -> None:
        """Starts the measurement of the next step."""
        self._taken_at, self._before, self._reward_seconds = time.monotonic(), dict(self._counters), 0.0

    def learned(self, step: int) -> None:
        self._admission.learned()
        self._order()

    def measurements(self, step: int, scored: Scored) -> dict[str, float]:
        changed = np.mean([bool(record.policy_changes) for record in scored.records])
        measured = staleness_metrics(step, scored, self._staleness) | {"staleness/changed": float(changed)}
        return measured | self._idle.shares()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            threads = [stream.close() for stream in self._streams]
            self._changed.notify_all()
        for thread in threads:
            end_thread(thread, interrupted=isinstance(error, KeyboardInterrupt))


def scheduled(lanes: Lanes, learner: Learner, draw: TrainingDraw, staleness: int, recompute_contexts: bool) -> InTurn:
    """Returns the schedule of a run; the arguments are those of `Streaming`.

    Raises:
      UserError: the lanes or the processes cannot sample while the trainer learns.
    """
    if staleness == 0:
        return InTurn(lanes, learner, draw)
    processes = jax.process_count()
    if processes > 1 and lanes.count == 1:
        raise UserError(
            f"train.staleness is {staleness}, but {processes} processes share one lane, which samples and learns in"
            f" turn: set Lanes.count to {processes} or a multiple, or train.staleness to 0"
        )
    if staleness == 1:
        return OneAhead(lanes, learner, draw)
    return Streaming(lanes, learner, draw, staleness, recompute_contexts)
