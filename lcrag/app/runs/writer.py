"""Which of several processes writes what all of them hold."""

import sys
from collections.abc import Callable

import numpy as np

from lcrag.errors import UserError

SENTENCE = 2000  # bytes at most of what one process tells the others


def is_writer() -> bool:
    """Whether this process writes to the run's folder: of several that JAX's distributed runtime holds together the
    first one does, and without it the only one.

    Checkpoints are written by all, each its own devices' part; so is a policy, which the first one then completes.
    """
    jax = sys.modules.get("jax")  # never imported here: it takes seconds, as does the number of one process alone
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def writer_does(work: Callable[[], None]) -> None:
    """Lets the writer do some work, for which the other processes wait; all call this at the same point.

    Raises:
      UserError: the writer was refused something; every process says so, and none waits for one that has gone.
      Exception: it failed otherwise, which the others tell as a UserError.
    """
    failure: Exception | None = None
    if is_writer():
        try:
            work()
        except Exception as error:
            failure = error
    sentence = _told("" if failure is None else str(failure) or type(failure).__name__)
    if failure is not None:
        raise failure
    if sentence:
        raise UserError(sentence)


def _told(sentence: str) -> str:
    """What the first process says, in every process."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return sentence
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(sentence.encode()[:SENTENCE].ljust(SENTENCE, b"\0"), np.uint8)
    return multihost_utils.broadcast_one_to_all(encoded).tobytes().rstrip(b"\0").decode(errors="ignore")
