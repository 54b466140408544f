"""Schedules of sampling and learning: in turn, or sampling the next step's episodes while the update runs.

A schedule returns the episodes of one step after the other:

    with saved.interruptible():
        episodes = schedule.episodes(step)  # changes no state: a signal may end it
    schedule.taken(step)
    ...                                     # the learner learns from them
    schedule.learned(step)
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lcrag.errors import UserError
from lcrag.learning import PolicyGradient
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.policy import Policy, compute_parameters, join, split_trainable
from lcrag.runs import stopping
from lcrag.train.lane_episodes import Share
from lcrag.train.lanes import Lanes
from lcrag.train.rollouts import StepEpisodes, first_share, sample_step
from lcrag.train.scoring import Scored
from lcrag.train.training_draw import TrainingDraw

Phase = Callable[..., None]  # (name, done, total): see `ProgressDisplay.phase`
BEHAVIOUR = "behaviour"  # entry of a checkpoint: the parameters that sample the step after it


def check_staleness(
    staleness: int, objective: PolicyGradient, most_rollouts: int, recompute_contexts: bool = False
) -> None:
    """Checks that the other settings of a run allow its staleness.

    Raises:
      UserError: they do not.
    """
    if staleness and objective.importance_cap is None:
        raise UserError(
            f"train.staleness is {staleness}, so episodes are of an older policy than the one that learns from them,"
            " which only a correction makes right: add --gin_file=objective/importance_correction.gin, or set it to 0"
        )
    if staleness > 1 and most_rollouts > 1:
        raise UserError(
            f"train.most_rollouts is {most_rollouts}, so a step's groups are replaced by others, but with a"
            f" train.staleness of {staleness} groups belong to no step while they are sampled: set train.staleness to"
            " 1, or train.most_rollouts to 1"
        )
    if recompute_contexts and staleness <= 1:
        raise UserError(
            f"train.recompute_contexts is True, but with a train.staleness of {staleness} no weights change while"
            " episodes run: set train.staleness to 2 or more, or train.recompute_contexts to False"
        )


class IdleTimes:
    """Shares of wall time in which samplers and the trainer wait for each other; thread-safe.

    Args:
      samplers: Number of threads that sample; their shares are averaged.
    """

    def __init__(self, samplers: int = 1):
        self._lock, self._started = threading.Lock(), time.monotonic()
        self._counted = self._started
        self._threads = {"sampler": samplers, "trainer": 1}
        self._waiting = dict.fromkeys(self._threads, 0)
        self._seconds = dict.fromkeys(self._threads, 0.0)

    @contextlib.contextmanager
    def waiting(self, who: str) -> Iterator[None]:
        """Counts the block as idle time of the "sampler" or the "trainer"."""
        with self._lock:
            self._count()
            self._waiting[who] += 1
        try:
            yield
        finally:
            with self._lock:
                self._count()
                self._waiting[who] -= 1

    def _count(self) -> float:
        """Adds the time since the last call for those who wait, and returns the current time."""
        now = time.monotonic()
        for who, number in self._waiting.items():
            self._seconds[who] += (now - self._counted) * number / self._threads[who]
        self._counted = now
        return now

    def shares(self) -> dict[str, float]:
        """Returns the seconds since the last call and the shares of them, under the names of `metrics.jsonl`."""
        with self._lock:
            now = self._count()
            period, self._started = max(now - self._started, 1e-9), now
            shares = {f"idle/{who}": seconds / period for who, seconds in self._seconds.items()}
            self._seconds = dict.fromkeys(self._seconds, 0.0)
        return {"seconds/step": period, **shares}


class InTurn(contextlib.AbstractContextManager["InTurn"]):
    """The schedule of staleness 0: the current policy samples the episodes of every step.

    Args:
      lanes: Sample and score episodes.
      learner: Learns from them.
      draw: The groups of each step.
    """

    def __init__(self, lanes: Lanes, learner: Learner, draw: TrainingDraw):
        self._lanes, self._learner, self._draw = lanes, learner, draw
        self._phase: Phase = lambda *shown: None
        self._idle = IdleTimes()

    @property
    def state(self) -> PyTree:
        """The content of a checkpoint."""
        return self._learner.state

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continues from the latest intact checkpoint if there is one; returns the first step to do."""
        return self._learner.restore(checkpoints)

    def begin(self, first: int, steps: int, phase: Phase) -> None:
        """Prepares steps `first` to `steps` - 1; `phase` shows the progress."""
        self._phase = phase
        self._lanes.set_params(self._learner.params)

    def episodes(self, step: int) -> StepEpisodes:
        """Returns the episodes of a step; may be called again after an exception."""
        return sample_step(self._lanes, self._draw, step, policy_version=step, phase=self._phase)

    def taken(self, step: int) -> None:
        """Does the schedule's work after `episodes`, before the learner's update."""

    def learned(self, step: int) -> None:
        """Does the schedule's work after the learner's update with a step's episodes."""
        self._lanes.set_params(self._learner.params)

    def measurements(self, step: int, scored: Scored) -> dict[str, float]:
        """Metrics of the schedule, under the names of `metrics.jsonl`."""
        return {"seconds/step": self._idle.shares()["seconds/step"]}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends running threads."""


def staleness_metrics(version: int, scored: Scored, most: int) -> dict[str, float]:
    """Returns the staleness of a step's episodes: mean, largest, and the share of each value.

    The staleness of an episode is the number of updates since the oldest policy that sampled it.

    Args:
      version: Number of updates of the learning policy.
      scored: The episodes.
      most: The bound.
    """
    staleness = version - np.array([record.policy_version for record in scored.records])
    shares = np.bincount(staleness, minlength=most + 1) / len(staleness)
    return {"staleness/mean": float(staleness.mean()), "staleness/max": int(staleness.max())} | {
        f"staleness/share_{age}": float(share) for age, share in enumerate(shares)
    }


class OneAhead(InTurn):
    """The schedule of staleness 1: a thread samples step n + 1 with the policy before update n, while it runs.

    Each of several processes samples its share of the first rollout ahead; collective work is done in turn.
    Sampling has its own copy of the parameters. A checkpoint contains this copy, in the compute dtype, because it
    samples the step after the checkpoint: a continued run samples that step again.

    The arguments are those of `InTurn`.
    """

    def __init__(self, lanes: Lanes, learner: Learner, draw: TrainingDraw):
        super().__init__(lanes, learner, draw)
        self._copies = OwnParameters(lanes.policy, learner)
        self._behaviour, self._steps = self._copies.trained(), 0
        self._wanted: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._sampled: queue.SimpleQueue[StepEpisodes | Share | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._sample, name="rollout", daemon=True)

    @property
    def state(self) -> PyTree:
        return {**vars(self._learner.state), BEHAVIOUR: self._behaviour}

    def restore(self, checkpoints: Checkpoints) -> int:
        step, restored = checkpoints.continue_from(self.state)
        self._behaviour = restored.pop(BEHAVIOUR)
        self._learner.state = type(self._learner.state)(**restored)
        return step

    def begin(self, first: int, steps: int, phase: Phase) -> None:
        self._steps, self._phase = steps, phase
        self._thread.start()
        self._order(first, policy_version=max(0, first - 1))

    def _order(self, step: int, policy_version: int) -> None:
        """Orders the sampling of a step with the parameters in `_behaviour`, unless it is beyond the last one."""
        if step < self._steps:
            self._lanes.set_params(self._copies.whole(self._behaviour))
            self._wanted.put((step, policy_version))

    def _next_order(self) -> tuple[int, int] | None:
        with self._idle.waiting("sampler"):
            return self._wanted.get()

    def _sample(self) -> None:
        """Samples the ordered steps; runs in the thread."""
        while (order := self._next_order()) is not None:
            step, version = order
            sample = sample_step if jax.process_count() == 1 else first_share
            try:
                self._sampled.put(sample(self._lanes, self._draw, step, policy_version=version, phase=self._phase))
            except BaseException as error:
                self._sampled.put(error)

    def episodes(self, step: int) -> StepEpisodes:
        with self._idle.waiting("trainer"):
            sampled = self._sampled.get()
        if isinstance(sampled, BaseException):
            raise sampled
        if isinstance(sampled, StepEpisodes):
            return sampled
        version = max(0, step - 1)
        return sample_step(self._lanes, self._draw, step, policy_version=version, phase=self._phase, share=sampled)

    def taken(self, step: int) -> None:
        self._behaviour = self._copies.trained()
        self._order(step + 1, policy_version=step)

    def learned(self, step: int) -> None:
        pass

    def measurements(self, step: int, scored: Scored) -> dict[str, float]:
        return staleness_metrics(step, scored, 1) | self._idle.shares()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._lanes.abandon()
        self._wanted.put(None)
        end_thread(self._thread, interrupted=isinstance(error, KeyboardInterrupt))


class OwnParameters:
    """Copies the trained parameters for a sampler that runs while updates overwrite them.

    Args:
      policy: The policy in training.
      learner: Its learner.
    """

    def __init__(self, policy: Policy, learner: Learner):
        self._config, self._learner = policy.config, learner
        _, self._frozen = split_trainable(policy.config, policy.params)

    def trained(self) -> PyTree:
        """Returns a copy of the current trained parameters: adapters, or all parameters in the compute dtype."""
        now = self._learner.state.params
        cast = now if self._config.lora else compute_parameters(self._config, now)
        return jax.tree.map(lambda own, leaf: jnp.copy(leaf) if own is leaf else own, cast, now)

    def whole(self, trained: PyTree) -> PyTree:
        """Returns the copied parameters with the frozen ones."""
        return join(trained, self._frozen)


def end_thread(thread: threading.Thread, *, interrupted: bool) -> None:
    """Waits for a thread that was told to end; only briefly after a signal, as it may be compiling or searching."""
    if thread.is_alive():
        thread.join(stopping.PATIENCE_SECONDS if interrupted else None)
