"""The train state on disk: every few steps and, where a signal stops the run, that of the last finished step."""

import contextlib
from collections.abc import Callable
from types import TracebackType

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from lcrag.app.runs.stopping import HeldSignals, Stopped
from lcrag.learning.checkpoints import Checkpoints


class FinishedSteps:
    """Saves a run's steps. SIGTERM and Ctrl-C are held back while its block runs, but where a step may be abandoned.

    At its end all that was saved is complete on disk, but for an end by a mistake. Of several processes each may be
    signalled: all end by the signal that all know of, after the same step.

    Raises:
      Stopped: where the block ends, a signal came that it has not raised.

    Args:
      checkpoints: Where to.
      state: Returns the train state as it is; asked between steps, and where a step is abandoned.
      first_step: The first to do; its state is saved already, or is that of the beginning.
    """

    def __init__(self, checkpoints: Checkpoints, state: Callable[[], PyTree], first_step: int):
        self._checkpoints, self._state, self._signals = checkpoints, state, HeldSignals()
        self._done = self._saved = first_step

    def __enter__(self) -> "FinishedSteps":
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
            self._signals.raise_held()  # what came behind the agreement, to this process alone

    def abandonable(self) -> contextlib.AbstractContextManager[None]:
        """A block that a signal ends wherever it is: it must leave the state as it was.

        One of several processes cannot leave alone what the others are at: there, steps are always finished.

        Raises:
          Stopped: a signal came, before the block or in it.
        """
        return self._signals.let_through() if jax.process_count() == 1 else contextlib.nullcontext()

    def finished(self, step: int, *, save: bool, validation_loss: float | None = None) -> None:
        """Tells that a step is done.

        Args:
          step: Which one.
          save: Whether its state is to be saved in any case.
          validation_loss: Of its state, if it was measured.

        Raises:
          Stopped: a signal came, to any of the processes.
        """
        self._done = step + 1
        if save:
            self._save(validation_loss)
        self._raise_agreed()

    def _raise_agreed(self) -> None:
        """Raises the signal that all processes know of; one that came to this one alone stays held until they do."""
        if number := self._agreed():
            self._signals.came(number)
            self._signals.raise_held()

    def _agreed(self) -> int:
        if jax.process_count() == 1:
            return self._signals.number
        return int(multihost_utils.process_allgather(np.int32(self._signals.number)).max())

    def _save(self, validation_loss: float | None = None) -> None:
        if self._done > self._saved:
            self._checkpoints.save(self._done, self._state(), validation_loss)
            self._saved = self._done
