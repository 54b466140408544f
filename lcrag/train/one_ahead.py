"""Staleness 1: a thread samples the next step with the policy before the update, while the update runs."""

import contextlib
import time
from collections.abc import Sequence
from concurrent import futures
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lcrag.episodes.runner import WAIT_SECONDS
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.policy import compute_parameters, join, split_trainable
from lcrag.runs import processes
from lcrag.train.method import Episode
from lcrag.train.rollout import Rollouts, StepSampler

BEHAVIOUR = "behaviour"  # entry of a checkpoint: the parameters that sample the step after it


class OneAhead(contextlib.AbstractContextManager["OneAhead"]):
    """Samples one step ahead on its own thread, which the block ends.

    With several processes, the thread samples this process's share of the first rollout, and the collective work is
    done by `take`, in turn with that of the update. Sampling has its own copy of the parameters, because the update
    overwrites them. A checkpoint contains this copy, in the compute dtype: a continued run samples the step after the
    checkpoint again, with the same parameters.
    """

    def __init__(self, rollouts: Rollouts, learner: Learner):
        self._rollouts, self._learner = rollouts, learner
        self._config = rollouts.policy.config
        _, self._frozen = split_trainable(self._config, rollouts.policy.params)
        self._behaviour = self._copied()
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._sampling: futures.Future[Any] | None = None
        self._waited, self._idle_since = {"sampler": 0.0, "trainer": 0.0}, 0.0

    @property
    def state(self) -> PyTree:
        """The content of a checkpoint."""
        return {**vars(self._learner.state), BEHAVIOUR: self._behaviour}

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continues from the latest intact checkpoint if there is one; returns the first step to do."""
        step, restored = checkpoints.continue_from(self.state)
        self._behaviour = restored.pop(BEHAVIOUR)
        self._learner.state, self._learner.policy_version = type(self._learner.state)(**restored), step
        return step

    def begin(self, step: int, sampler: StepSampler | None) -> None:
        """Begins to sample a step with the present parameters; the first of a call with those of its start.

        Without a sampler it only keeps these parameters, for a run that goes on with more steps.
        """

        def work() -> Any:  # a sampled step or, of several processes, this one's share of it
            assert sampler is not None
            self._waited["sampler"] += time.monotonic() - self._idle_since
            try:
                return sampler.sample(step) if jax.process_count() == 1 else sampler.begin(step)
            finally:
                self._idle_since = time.monotonic()

        if self._sampling is None:  # a continued run samples with the parameters of its checkpoint
            self._idle_since = time.monotonic()
        else:
            self._behaviour = self._copied()
        self._rollouts.set_params(join(self._behaviour, self._frozen), max(0, step - 1))
        if sampler is not None:
            self._sampling = self._thread.submit(work)

    def take(self, step: int, sampler: StepSampler) -> tuple[list[Episode], list[dict[str, float]]]:
        """Waits for the step that was begun; returns what `StepSampler.sample` does, or raises what ended sampling."""
        assert self._sampling is not None
        started = time.monotonic()
        while not futures.wait([self._sampling], WAIT_SECONDS).done:
            processes.raise_stopped()
        self._waited["trainer"] += time.monotonic() - started
        sampled = self._sampling.result()
        return sampled if jax.process_count() == 1 else sampler.sample(step, sampled)

    def metrics(self, step: int, episodes: Sequence[Episode], seconds: float) -> dict[str, float]:
        """Returns the metrics of a step that took so many seconds.

        The shares of them in which the sampler and the trainer waited for each other, and the staleness of the
        episodes, updates since the policy that sampled them: mean, largest, shares.
        """
        waited, self._waited = self._waited, dict.fromkeys(self._waited, 0.0)
        staleness = step - np.array([episode.record.policy_version for episode in episodes])
        shares = np.bincount(staleness, minlength=2) / len(staleness)
        return {
            "staleness/mean": float(staleness.mean()),
            "staleness/max": int(staleness.max()),
            **{f"staleness/share_{age}": float(share) for age, share in enumerate(shares)},
            **{f"idle/{who}": min(1.0, taken / seconds) for who, taken in waited.items()},
        }

    def _copied(self) -> PyTree:
        """Returns a copy of the trained parameters: adapters, or all parameters in the compute dtype."""
        now = self._learner.state.params
        cast = now if self._config.lora else compute_parameters(self._config, now)
        return jax.tree.map(lambda made, leaf: jnp.copy(leaf) if made is leaf else made, cast, now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._rollouts.abandon()
        if self._sampling is not None:  # after a signal only briefly, as the thread may be compiling or searching
            futures.wait([self._sampling], processes.PATIENCE_SECONDS if isinstance(error, KeyboardInterrupt) else None)
        self._thread.shutdown(wait=False)
