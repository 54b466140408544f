"""Several processes: how they find each other, what the first one does alone, and how they end.

`jax.distributed` does all communication. Nothing here imports JAX for a single process.
"""

import contextlib
import glob
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lcrag.errors import UserError

OPTIONS = {
    "--coordinator": "HOST:PORT of the first of several processes; SLURM, Open MPI and Cloud TPU know it",
    "--processes": "number of processes; 1: do not look for others",
    "--process": "index of this process, from 0",
    "--heartbeat_seconds": "silence after which a process counts as lost, and the others end; 100",
}
LEAVE_SECONDS = 10.0  # how long a process that ends early waits for the others, before it leaves them
MESSAGE_BYTES = 2000  # largest error message that is sent to the other processes


def find_processes(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Returns the arguments of `jax.distributed.initialize`, or None on a single machine; does not import JAX.

    Args:
      options: Values of `OPTIONS` on the command line.
      environment: Environment variables, in which JAX detects SLURM, Open MPI and Cloud TPUs by itself.

    Raises:
      UserError: the options are wrong or incomplete.
    """
    numbers: dict[str, int] = {}
    for option in ("--processes", "--process", "--heartbeat_seconds"):
        if option in options:
            if not options[option].isdecimal():
                raise UserError(f"{option} takes a whole number, not {options[option]!r}")
            numbers[option] = int(options[option])
    settings = {"heartbeat_timeout_seconds": max(1, numbers.get("--heartbeat_seconds", 100))}
    processes, process = numbers.get("--processes"), numbers.get("--process")
    if processes == 1 and not process:
        return None
    coordinator = options.get("--coordinator")
    if coordinator is None:
        if processes is not None or process is not None:
            raise UserError("--processes and --process need the address of the first one: --coordinator=HOST:PORT")
        counted = (environment.get(name, "1") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
        hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES") or ""
        on_tpu = "TPU_SKIP_MDS_QUERY" not in environment and bool(glob.glob("/dev/accel*"))  # JAX asks the VM for more
        several = any(count.isdecimal() and int(count) > 1 for count in counted) or "," in hosts or on_tpu
        return settings if several else None
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator takes HOST:PORT, not {coordinator!r}")
    if processes is None or process is None:
        raise UserError("--coordinator needs --processes=N and --process=I")
    if not 0 <= process < processes:
        raise UserError(f"process {process} of {processes}: --process counts from 0 to --processes - 1")
    known = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    return settings | known | {"cluster_detection_method": "deactivate"}


def join(found: Mapping[str, Any], configuration: str) -> None:
    """Joins the other processes, checks that they run the same, and prints how many devices there are.

    Args:
      found: Result of `find_processes`.
      configuration: Text that must be the same in all processes.

    Raises:
      UserError: the processes did not find each other, or differ; all of them raise.
    """
    import jax

    from lcrag.episodes.agreement import check_same_everywhere

    try:
        jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM from Python
        with _errors_only():
            jax.distributed.initialize(**found)
            count = len(jax.devices())
    except Exception as error:  # whatever a kind of cluster raises
        raise UserError(
            f"the processes cannot be joined: {' '.join(str(error).split()) or type(error).__name__}; name them by"
            " --coordinator=HOST:PORT --processes=N --process=I, or use --processes=1 for this machine alone"
        ) from error
    print(
        f"lcrag: process {jax.process_index()} of {jax.process_count()}: {count} devices, {jax.local_device_count()}"
        f" here ({jax.local_devices()[0].device_kind})",
        flush=True,
    )
    digest = hashlib.sha256(configuration.encode()).hexdigest()
    check_same_everywhere({"version of JAX": jax.__version__, "configuration": digest})


@contextlib.contextmanager
def _errors_only():
    """Redirects libraries' standard output to standard error, so the first line is this program's."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def has_joined() -> bool:
    """Whether `jax.distributed` is initialised."""
    jax = sys.modules.get("jax")  # importing it takes seconds
    return jax is not None and jax.distributed.is_initialized()


def several_processes() -> bool:
    """Whether this process has joined others."""
    return has_joined() and sys.modules["jax"].process_count() > 1


def leave() -> None:
    """Leaves the others before this process ends with an error; waits at most `LEAVE_SECONDS` for them."""
    import jax

    leaving = threading.Thread(target=jax.distributed.shutdown, name="leaving", daemon=True)
    leaving.start()
    leaving.join(LEAVE_SECONDS)


def is_writer() -> bool:
    """Returns whether this process writes to the run's folder: it is the only one, or process 0.

    Checkpoints and saved policies are written by all processes, each the shards on its own devices; process 0 then
    completes a saved policy.
    """
    return not has_joined() or sys.modules["jax"].process_index() == 0


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
    message = "" if failure is None else str(failure) or type(failure).__name__
    if has_joined():
        from jax.experimental import multihost_utils

        encoded = np.frombuffer(message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0"), np.uint8)
        message = multihost_utils.broadcast_one_to_all(encoded).tobytes().rstrip(b"\0").decode(errors="ignore")
    if failure is not None:
        raise failure
    if message:
        raise UserError(message)
