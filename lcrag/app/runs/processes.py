"""Of several processes the first one writes a run's folder, and all fail together."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from lcrag.errors import UserError

MESSAGE_BYTES = 2000  # largest error message that is sent to the other processes


def is_writer() -> bool:
    """Returns whether this process writes to the run's folder: the first of JAX's distributed runtime, or the only one.

    Checkpoints are written by all processes, each the part on its own devices; so is a saved policy, which the first
    one completes.
    """
    jax = sys.modules.get("jax")  # not imported here, which takes seconds, as does asking for the process index
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def writer_does(work: Callable[[], None]) -> None:
    """Runs `work` in the writer while the other processes wait; all processes call this at the same point.

    Raises:
      UserError: the writer raised one; every process raises it, and none waits for a process that has ended.
      Exception: the writer failed otherwise, which the other processes raise as a UserError.
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
    """The first process's message, in every process."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return message
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0"), np.uint8)
    return multihost_utils.broadcast_one_to_all(encoded).tobytes().rstrip(b"\0").decode(errors="ignore")
