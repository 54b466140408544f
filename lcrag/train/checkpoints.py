"""Checkpoints between steps: every few steps and, if a signal stops the run, after the last finished one."""

import contextlib
from collections.abc import Callable
from types import TracebackType

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from lcrag.learning.checkpoints import Checkpoints
from lcrag.runs.remote import upload_copies
from lcrag.runs.stopping import HeldSignals, Stopped


class StepCheckpoints:
    """Saves a run's steps, and defers SIGTERM and Ctrl-C while its block runs, except in `interruptible` blocks.

    At the end of the block everything saved is complete on disk, except after an error. With several processes, a
    signal to any of them ends all after the same step.

    Args:
      checkpoints: Where to save.
      state: Returns what to save; called between steps, and when a step is abandoned.
      first_step: The first step of this call; the state before it is already saved, or is the initial one.

    Raises:
      Stopped: at the end of the block, if a deferred signal arrived.
    """

    def __init__(self, checkpoints: Checkpoints, state: Callable[[], PyTree], first_step: int):
        self._checkpoints, self._state, self._signals = checkpoints, state, HeldSignals()
        self._done = self._saved = first_step

    def __enter__(self) -> "StepCheckpoints":
        self._signals.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if isinstance(error, Stopped):
                self._save()
            if error is None or isinstance(error, Stopped):
                self._checkpoints.wait()
            if error is None:
                self._raise_agreed()
        finally:
            self._signals.__exit__()
        if error is None:
            self._signals.raise_held()  # a signal to this process alone, after the last agreement

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that a signal can end at any point by `Stopped`; it must not change the state.

        With several processes, steps are always finished, because one process cannot abandon collective work.
        """
        return contextlib.nullcontext() if jax.process_count() > 1 else self._signals.let_through()

    def finish(self, step: int, *, save: bool, validation_loss: float | None = None) -> None:
        """Records that a step is done, and saves the state after it if `save`.

        Raises:
          Stopped: a signal arrived at any of the processes.
        """
        self._done = step + 1
        if save:
            self._save(validation_loss)
        self._raise_agreed()

    def _raise_agreed(self) -> None:
        """Raises a signal that all processes know of; a signal to this process alone stays deferred until they do."""
        number = self._signals.number
        if jax.process_count() > 1:
            number = int(multihost_utils.process_allgather(np.int32(number)).max())
        if number:
            self._signals.number = number  # which any of the processes may have received
            self._signals.raise_held()

    def _save(self, validation_loss: float | None = None) -> None:
        if self._done > self._saved:
            upload_copies()  # first: a checkpoint in object storage has the metrics of its steps there
            self._checkpoints.save(self._done, self._state(), validation_loss)
            self._saved = self._done
