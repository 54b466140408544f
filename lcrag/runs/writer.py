"""Which of several processes writes what all of them hold."""

import sys


def is_writer() -> bool:
    """Whether this process writes to the run's folder: JAX's first one does, and where there is no JAX the only one.

    Checkpoints are written by all, each its own devices' part; so is a policy, which the first one then completes.
    """
    jax = sys.modules.get("jax")  # never imported here: it takes seconds
    return jax is None or jax.process_index() == 0
