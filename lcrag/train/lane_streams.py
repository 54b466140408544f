"""A lane that samples continuously: it receives groups and new parameters while its episodes run."""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jaxtyping import PyTree

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.episodes.agreement import alone
from lcrag.train.lane_episodes import LaneEpisodes, spent
from lcrag.train.lane_plan import SharedCount
from lcrag.train.lanes import Abandoned, Lane
from lcrag.train.method import ProgramOf
from lcrag.train.schedule import IdleTimes
from lcrag.train.scoring import Rewards

FAILED = 1 << 20  # added to the count on a failure; larger than the groups of any step
Orders: TypeAlias = Mapping[int, Sequence[tuple[int, Question]]]  # group -> its episodes


class LaneStream:
    """Samples groups in one lane, on a thread, until the last order.

    After new parameters arrive, contexts keep the keys and values of older parameters or are recomputed. Recorded
    log-probabilities are always those of sampling.

    Args:
      lane: The lane that samples.
      program: Builds a question's program.
      changed: Guards the shared state of the thread and its owner; notified when a group finishes or sampling fails.
      finished: Counts the finished groups of all lanes; a failure adds `FAILED`.
      idle: Measures the time without anything to sample.
      recompute: Whether new parameters recompute the contexts of running episodes.

    Attributes:
      failure: The exception that ended the thread early; None: no failure.
    """

    def __init__(
        self,
        lane: Lane,
        program: ProgramOf,
        changed: threading.Condition,
        finished: SharedCount,
        idle: IdleTimes,
        *,
        recompute: bool,
    ):
        self.failure: Exception | None = None
        self._lane, self._program, self._changed, self._idle = lane, program, changed, idle
        self._count, self._recompute = finished, recompute
        self._new: tuple[PyTree, int] | None = None
        self._orders: dict[int, Sequence[tuple[int, Question]]] = {}
        self._complete = self._closing = False
        self._group_of: dict[int, int] = {}  # running episode -> group
        self._records: dict[int, list[EpisodeRecord]] = {}
        self._finished: dict[int, list[EpisodeRecord]] = {}
        self._thread = threading.Thread(target=self._sample, name=f"rollout {lane.number}", daemon=True)

    @property
    def number(self) -> int:
        """The lane's."""
        return self._lane.number

    def start(self) -> None:
        """Starts sampling with the first order."""
        self._before = dataclasses.replace(self._lane.sampler.statistics)
        self._thread.start()

    def order(self, orders: Orders, params: PyTree, version: int, *, complete: bool) -> None:
        """Orders groups and sets new parameters from the next block on; its caller holds and notifies `changed`.

        Args:
          orders: The episodes of each group, by their numbers.
          params: The parameters, also for running episodes.
          version: Version of the parameters.
          complete: Whether this is the last order.
        """
        self._orders |= orders
        self._new, self._complete = (params, version), complete

    def take_finished(self) -> dict[int, list[EpisodeRecord]]:
        """Returns the groups that have finished since the last call; its caller holds `changed`."""
        finished, self._finished = self._finished, {}
        return finished

    def sampled(self, records: Sequence[EpisodeRecord], rewards: Rewards) -> LaneEpisodes:
        """Returns a group's episodes, with the lane's times and counters since the start."""
        statistics = spent(self._lane.sampler.statistics, self._before)
        wait = self._lane.runner.statistics.retrieval_wait_seconds
        busy = statistics.append_seconds + statistics.decode_seconds + wait
        seconds = {"rollout": busy, "retrieval_wait": wait, "rewards": 0.0}
        return LaneEpisodes(lane=self.number, records=records, rewards=rewards, seconds=seconds, statistics=statistics)

    def close(self) -> threading.Thread:
        """Tells the thread to end at its next block, and returns it; its caller holds and notifies `changed`."""
        self._closing = True
        return self._thread

    def _sample(self) -> None:
        """Samples the ordered groups; runs in the thread."""
        try:
            with alone():
                self._lane.runner.run((), between=self._between, finished=self._deliver)
        except Abandoned:
            pass
        except Exception as failure:
            with self._changed:
                self.failure = failure
            self._tell(FAILED)

    def _between(self) -> None:
        """Sets new parameters and starts the ordered groups; waits if there is nothing to sample."""
        with self._changed:
            if not (self._orders or self._group_of):
                with self._idle.waiting("sampler"):
                    self._changed.wait_for(lambda: self._orders or self._complete or self._closing)
            if self._closing:
                raise Abandoned
            (new, self._new), (orders, self._orders) = (self._new, None), (self._orders, {})
        if new is not None:
            self._take_over(*new)
        self._records |= {group: [] for group in orders}
        self._group_of |= {number: group for group, episodes in orders.items() for number, _ in episodes}
        asked = [each for episodes in orders.values() for each in episodes]
        self._lane.runner.add([(question, self._program(question), number) for number, question in asked])

    def _take_over(self, params: PyTree, version: int) -> None:
        self._lane.sampler.set_params(params, keep_contexts=True)
        if self._recompute:
            self._lane.sampler.recompute(self._lane.runner.contexts())
        self._lane.runner.change_policy(version)

    def _deliver(self, record: EpisodeRecord) -> None:
        group = self._group_of.pop(record.episode)
        self._records[group].append(record)
        if group not in self._group_of.values():
            with self._changed:
                self._finished[group] = sorted(self._records.pop(group), key=lambda each: each.episode)
            self._tell(1)

    def _tell(self, number: int) -> None:
        self._count.add(number)
        with self._changed:
            self._changed.notify_all()
