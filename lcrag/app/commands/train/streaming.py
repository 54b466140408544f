"""Staleness above 1: a thread samples without a break, and the learner takes the oldest episodes that have finished."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from itertools import groupby
from types import TracebackType

import jax
import numpy as np
from jaxtyping import PyTree

from lcrag.app.commands.train.admission import Admission
from lcrag.app.commands.train.dynamic_sampling import StepBatch
from lcrag.app.commands.train.rollouts import PHASES, StepEpisodes
from lcrag.app.commands.train.schedule import (
    InTurn,
    OneAhead,
    OwnParameters,
    Phase,
    end_thread,
    staleness_metrics,
)
from lcrag.app.composition.lane_episodes import spent
from lcrag.app.composition.lanes import Abandoned, Lanes
from lcrag.app.composition.method import ProgramOf
from lcrag.app.composition.scoring import Scored, joined
from lcrag.app.composition.training_draw import TrainingDraw
from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.errors import UserError
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.policy import Policy
from lcrag.sampling import SamplerStatistics

UNDER_WAY = "under_way"  # of a checkpoint: groups that had begun; -1 after them


class Streaming(InTurn):
    """Samples groups as `Admission` lets them begin; new parameters reach episodes that have begun, too.

    A context keeps the keys and values that older parameters computed, or all are computed again; the log-probabilities
    that are recorded are those that its tokens were sampled with. What is learned from, and in which order, depends on
    time. A checkpoint holds the numbers of the groups that had begun; a continued run samples these again, first.

    Args:
      staleness: Updates by which the policy may be newer that learns from an episode than the one that began it.
      program: Builds a question's program; the other arguments are those of `OneAhead`.
      recompute_contexts: Whether new parameters compute the contexts again of episodes that have begun.
    """

    def __init__(
        self,
        staleness: int,
        policy: Policy,
        lanes: Lanes,
        learner: Learner,
        draw: TrainingDraw,
        program: ProgramOf,
        recompute_contexts: bool = False,
    ):
        super().__init__(lanes, learner, draw)
        self._staleness, self._program, self._recompute = staleness, program, recompute_contexts
        self._sampler, self._runner = lanes.sampler, lanes.runner
        self._copies = OwnParameters(policy, learner)
        self._admission = Admission(draw.couplings, staleness, last=0)
        self._changed = threading.Condition()  # of everything below
        self._closing = False
        self._error: BaseException | None = None
        self._new: tuple[PyTree, int] | None = None
        self._records: dict[int, list[EpisodeRecord]] = {}
        self._group_of: dict[int, int] = {}  # episode -> group
        self._ready: list[int] = []
        self._thread = threading.Thread(target=self._sample, name="rollout", daemon=True)

    @property
    def state(self) -> PyTree:
        with self._changed:
            under_way = self._admission.under_way
        numbers = np.full((self._staleness + 1) * self._draw.couplings, -1, np.int32)
        numbers[: len(under_way)] = under_way
        return {**vars(self._learner.state), UNDER_WAY: jax.device_put(numbers, jax.devices()[0])}

    def restore(self, checkpoints: Checkpoints) -> int:
        step, restored = checkpoints.continue_from(self.state)
        under_way = jax.device_get(restored.pop(UNDER_WAY))
        self._learner.state = type(self._learner.state)(**restored)
        again = under_way[under_way >= 0].tolist()
        self._admission = Admission(self._draw.couplings, self._staleness, last=0, version=step, under_way=again)
        return step

    def begin(self, first: int, steps: int, phase: Phase) -> None:
        self._phase, self._admission.last = phase, steps * self._draw.couplings
        self._lanes.set_params(self._copies.whole(self._copies.trained()))
        self._taken_at, self._before = time.monotonic(), (self._counters()[0], 0.0)
        self._thread.start()

    def _counters(self) -> tuple[SamplerStatistics, float]:
        return dataclasses.replace(self._sampler.statistics), self._runner.statistics.retrieval_wait_seconds

    def _sample(self) -> None:
        """Samples until every group of the run has finished; runs in the thread."""
        try:
            version = self._admission.version
            self._runner.run((), policy_version=version, between=self._between, finished=self._finished)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _between(self) -> None:
        """Takes over new parameters and adds the groups that may begin; waits if there is nothing to sample."""
        with self._changed:
            self._take_over()
            groups = self._admission.begin()
            with self._idle.waiting("sampler"):
                while not (groups or self._admission.sampling or self._admission.all_begun):
                    self._changed.wait()
                    self._take_over()
                    groups = self._admission.begin()
        self._runner.add([each for group in groups for each in self._programs(group)])

    def _take_over(self) -> None:
        if self._closing:
            raise Abandoned
        if self._new is not None:
            (params, version), self._new = self._new, None
            self._sampler.set_params(params, keep_contexts=True)
            if self._recompute:
                self._sampler.recompute(self._runner.contexts())
            self._runner.change_policy(version)

    def _programs(self, group: int) -> list[tuple[Question, Program, int]]:
        """Returns the programs of a group; its episodes have the numbers that they would have in its step."""
        step, place = divmod(group, self._draw.couplings)
        drawn = self._draw.groups(step)
        first = step * self._draw.episodes + len(self._prompts(drawn[:place]))
        prompts = list(enumerate(self._prompts(drawn[place : place + 1]), first))
        self._group_of |= dict.fromkeys((number for number, _ in prompts), group)
        self._records[group] = []
        return [(question, self._program(question), number) for number, question in prompts]

    def _prompts(self, groups: Sequence[Coupled]) -> list[Question]:
        return self._draw.method.prompts(groups)

    def _finished(self, record: EpisodeRecord) -> None:
        group = self._group_of.pop(record.episode)
        self._records[group].append(record)
        if group not in self._group_of.values():
            with self._changed:
                self._admission.finish(group)
                self._changed.notify_all()

    def episodes(self, step: int) -> StepEpisodes:
        with self._idle.waiting("trainer"), self._changed:
            while (ready := self._admission.ready()) is None:
                if self._error is not None:
                    raise self._error
                self._changed.wait()
        self._ready = sorted(ready)
        waited = time.monotonic()
        self._phase("rewards")
        batch = StepBatch([self._draw.groups(n // len(ready))[n % len(ready)] for n in self._ready], most_rollouts=1)
        batch.add(self._scored(self._ready))
        now = self._counters()
        taken = waited - self._taken_at, now[1] - self._before[1], time.monotonic() - waited
        return StepEpisodes(
            batch=batch,
            seconds=dict(zip(PHASES, taken, strict=True)),
            statistics=spent(now[0], self._before[0]),
        )

    def _scored(self, groups: Sequence[int]) -> Scored:
        """Scores groups, those of one step of the draw together: no question occurs in it twice."""
        parts = []
        for step, own in groupby(groups, key=lambda group: group // self._draw.couplings):
            records = [sorted(self._records[group], key=lambda record: record.episode) for group in own]
            parts.append(self._draw.method.score([record for group in records for record in group], step))
        return joined(parts)

    def taken(self, step: int) -> None:
        with self._changed:
            self._admission.take(self._ready)
        for group in self._ready:
            del self._records[group]
        self._taken_at, self._before = time.monotonic(), self._counters()

    def learned(self, step: int) -> None:
        params = self._copies.whole(self._copies.trained())
        with self._changed:
            self._new = params, step + 1
            self._admission.learned()
            self._changed.notify_all()

    def measurements(self, step: int, scored: Scored) -> dict[str, float]:
        changed = np.mean([bool(record.policy_changes) for record in scored.records])
        measured = staleness_metrics(step, scored, self._staleness) | {"staleness/changed": float(changed)}
        return measured | self._idle.shares()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        end_thread(self._thread, interrupted=isinstance(error, KeyboardInterrupt))


def scheduled(
    staleness: int,
    policy: Policy,
    lanes: Lanes,
    learner: Learner,
    draw: TrainingDraw,
    program: ProgramOf,
    recompute_contexts: bool,
) -> InTurn:
    """Returns the schedule of a run; the arguments are those of `Streaming`.

    Raises:
      UserError: the lanes or the processes cannot sample while the trainer learns.
    """
    if staleness == 0:
        return InTurn(lanes, learner, draw)
    processes = jax.process_count()
    if processes > 1 and (staleness > 1 or lanes.count == 1):
        raise UserError(
            f"train.staleness is {staleness}, but {processes} processes run this command, which sample while they learn"
            f" only at a staleness of 1 and with lanes of their own: set Lanes.count to {processes} or a multiple, and"
            " train.staleness to 1 or 0"
        )
    if staleness == 1:
        return OneAhead(policy, lanes, learner, draw)
    if lanes.count > 1:
        raise UserError(
            f"train.staleness is {staleness}, which takes one lane, but Lanes.count is {lanes.count}: set one of them"
            " to 1"
        )
    return Streaming(staleness, policy, lanes, learner, draw, program, recompute_contexts)
