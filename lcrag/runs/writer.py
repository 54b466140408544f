"""Which of several processes writes what all of them hold."""

import sys


def is_writer() -> bool:
    """Whether this process writes to the run's folder: of several that JAX's distributed runtime holds together the
    first one does, and without it the only one.

    Checkpoints are written by all, each its own devices' part; so is a policy, which the first one then completes.
    """
    jax = sys.modules.get("jax")  # never imported here: it takes seconds, as does the number of one process alone
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0
