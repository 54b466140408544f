"""Coordination of several processes: the first one writes the run's folder, and its errors are raised in all."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from lcrag.errors import UserError

MESSAGE_BYTES = 2000  # largest error message that is sent to the other processes


def is_writer() -> bool:
    """Returns whether this process writes to the run's folder: it is the only one, or process 0 of JAX's runtime.

    Checkpoints and saved policies are written by all processes, each the shards on its own devices; process 0 then
    completes a saved policy.
    """
    jax = sys.modules.get("jax")  # importing jax takes seconds, as does initialising it for the process index
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def writer_does(work: Callable[[], None]) -> None:
    """Runs `work` in the writing process while the others wait; all processes call this at the same point.

    Raises:
      UserError: the writer raised it; it is raised in every process, so none waits for a process that has ended.
      Exception: another exception of the writer, which the other processes raise as a UserError.
    """
    failure: Exception | None = None
    if is_writer():
        try:
            work()
        except Exception as error:
            failure = error
    message = _broadcast("" if failure is None else str(failure) or type(failure).__name__)
    if failure is not None:
        raise failure
    if message:
        raise UserError(message)


def distributed_state() -> Any:
    """Returns the state of `jax.distributed`: its `client` and the `coordinator_address`.

    JAX has no public name for it; `jax.experimental.multihost_utils` reads the same object.
    """
    from jax._src import distributed

    return distributed.global_state


def _broadcast(message: str) -> str:
    """Returns the message of process 0 in every process."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return message
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0"), np.uint8)
    return multihost_utils.broadcast_one_to_all(encoded).tobytes().rstrip(b"\0").decode(errors="ignore")
