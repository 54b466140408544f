"""Joins the processes of a cluster, which are found in the environment or given on the command line.

`find_cluster` only reads the environment. JAX, its own detection of clusters and `jax.distributed` are used only with
several processes. `jax.distributed` does all communication.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lcrag.cli.arguments import whole_number
from lcrag.errors import UserError

OPTIONS = {
    "--coordinator": "HOST:PORT of the first of several processes; SLURM, Open MPI 4 and Cloud TPU know it",
    "--processes": "number of processes; 1: do not look for others",
    "--process": "index of this process, from 0",
    "--join_seconds": "how long to wait for the others at the start; 300",
    "--heartbeat_seconds": "silence after which a process counts as lost, and the others end; 100",
}
JOIN_SECONDS, HEARTBEAT_SECONDS = 300, 100
END_SECONDS = 3600  # how long finished processes wait for the first one, which reports and uploads
LEAVE_SECONDS = 10.0  # how long a process that ends early waits for the others, before it leaves them
LOST = 75  # exit status (EX_TEMPFAIL): another process was lost, the same command continues
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
METADATA_SECONDS = 2.0
TPU_VENDOR = "0x1ae0"  # Google's, of PCI devices
TEXT_BYTES = 512
SHOWN = 200  # characters shown of a statement that differs
LOST_WORDS = ("gloo", "nccl", "coordination service", "heartbeat", "barrier", "connection reset", "connection closed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """How a process joins others.

    Attributes:
      source: Where the other processes are known from: "SLURM", "--coordinator", ...
      join_seconds: How long to wait for the others at the start.
      heartbeat_seconds: Silence after which a process counts as lost.
      arguments: Arguments of `jax.distributed.initialize`, which finds the rest itself.
    """

    source: str
    join_seconds: int = JOIN_SECONDS
    heartbeat_seconds: int = HEARTBEAT_SECONDS
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def find_cluster(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Returns the cluster that this process belongs to, or None on a single machine; does not import JAX.

    Args:
      options: Values of `OPTIONS` on the command line.
      environment: Environment variables.

    Raises:
      UserError: the options are wrong or incomplete.
    """
    numbers = {
        option: whole_number(option, options[option]) if option in options else None
        for option in OPTIONS
        if option != "--coordinator"
    }
    processes, process = numbers["--processes"], numbers["--process"]
    seconds = {
        "join_seconds": _at_least_1(numbers, "--join_seconds", JOIN_SECONDS),
        "heartbeat_seconds": _at_least_1(numbers, "--heartbeat_seconds", HEARTBEAT_SECONDS),
    }
    coordinator = options.get("--coordinator")
    if processes == 1 and not process:
        return None
    if coordinator is None:
        if processes is not None or process is not None:
            raise UserError("--processes and --process need the address of the first one: --coordinator=HOST:PORT")
        source, found = _environment_cluster(environment)
        return None if found is None else Cluster(source=source, arguments=found, **seconds)
    processes = _known(environment, PROCESSES) if processes is None else processes
    process = _known(environment, PROCESS) if process is None else process
    if processes is None or process is None:
        missing = "--processes=N" if processes is None else "--process=I"
        raise UserError(f"--coordinator needs {missing}, which nothing in the environment says")
    _check_address(coordinator)
    if not 0 <= process < processes:
        raise UserError(f"process {process} of {processes}: --process counts from 0 to --processes - 1")
    known = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    arguments = known | {"cluster_detection_method": "deactivate"}
    return Cluster(source="--coordinator", arguments=arguments, **seconds)


# Variables of launchers, the first that is set counts: those of XPK on GPUs, of Open MPI, of SLURM.
PROCESSES = ("JAX_NUM_PROCESSES", "NNODES", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
PROCESS = ("JAX_PROCESS_ID", "NODE_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")


def _environment_cluster(environment: Mapping[str, str]) -> tuple[str, dict[str, Any] | None]:
    """Returns the source of a cluster, and the arguments that JAX does not find itself; None: no cluster."""
    if "proxy" in environment.get("JAX_PLATFORMS", ""):  # Pathways: one process drives all devices
        return "", None
    address = environment.get("JAX_COORDINATOR_ADDRESS", "")
    processes, process = _known(environment, PROCESSES[:2]), _known(environment, PROCESS[:2])
    if address and processes is not None and process is not None:
        address = address if ":" in address else f"{address}:{environment.get('JAX_COORDINATOR_PORT', '8476')}"
        known = {"coordinator_address": address, "num_processes": processes, "process_id": process}
        several = {**known, "cluster_detection_method": "deactivate"}
        return "JAX_COORDINATOR_ADDRESS", several if processes > 1 else None
    if all(name in environment for name in SLURM) and (_known(environment, ("SLURM_NTASKS",)) or 1) > 1:
        return "SLURM", {"cluster_detection_method": "slurm", **_slurm_devices(environment)}
    if (_known(environment, ("OMPI_COMM_WORLD_SIZE",)) or 1) > 1:
        if "OMPI_MCA_orte_hnp_uri" not in environment:  # Open MPI 5
            raise UserError("Open MPI 5 does not say where its first process is: add --coordinator=HOST:PORT")
        return "Open MPI", {"cluster_detection_method": "ompi"}
    return "Cloud TPU", {} if _several_tpu_hosts(environment) else None


def _slurm_devices(environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns all GPUs of a node for its only task; JAX would use one per task."""
    alone = environment.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0] == "1"
    gpus = _known(environment, ("SLURM_GPUS_ON_NODE",))
    return {"local_device_ids": list(range(gpus))} if alone and gpus else {}


def _several_tpu_hosts(environment: Mapping[str, str]) -> bool:
    if (_known(environment, ("MEGASCALE_NUM_SLICES",)) or 1) > 1:
        return True
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")  # GKE
    if hosts is not None or "TPU_SKIP_MDS_QUERY" in environment or not _has_tpu():
        return "," in (hosts or "")
    return "," in _metadata("worker-network-endpoints") or _slices(_metadata("tpu-env")) > 1


def _has_tpu(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether a TPU is attached to this machine."""
    for vendor in devices.glob("*/vendor"):
        with contextlib.suppress(OSError):
            if vendor.read_text().strip() == TPU_VENDOR:
                return True
    return False


def _metadata(name: str) -> str:
    """Returns an attribute of this TPU VM, or an empty text if the VM does not have it."""
    request = urllib.request.Request(f"{METADATA}/{name}", headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=METADATA_SECONDS) as answer:
            return answer.read().decode(errors="replace")
    except (OSError, urllib.error.URLError):
        return ""


def _slices(attributes: str) -> int:
    pairs = (line.partition(":") for line in attributes.splitlines())
    values = {name.strip(): value.strip().strip("'") for name, _, value in pairs}
    return _known(values, ("MEGASCALE_NUM_SLICES",)) or 1


def _known(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), None)


def _at_least_1(numbers: Mapping[str, int | None], option: str, usual: int) -> int:
    number = numbers[option]
    if number == 0:
        raise UserError(f"{option} is 0: give it 1 or more")
    return usual if number is None else number


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator takes HOST:PORT, not {address!r}")


def join(cluster: Cluster, configuration: str) -> None:
    """Joins the other processes, checks that they run the same, and prints how many hosts and devices there are.

    Args:
      cluster: How to join them.
      configuration: Text that must be the same in all processes.

    Raises:
      UserError: the processes did not find each other, or differ; all of them raise. If JAX's C++ client detects
        it, the client ends the process, and `lcrag.runs.guard` prints the message.
    """
    import jax

    settings = {
        "initialization_timeout": cluster.join_seconds,
        "heartbeat_timeout_seconds": cluster.heartbeat_seconds,
        "shutdown_timeout_seconds": END_SECONDS,
        **cluster.arguments,
    }
    same = {
        "number of processes": str(cluster.arguments.get("num_processes", "")),
        "version of JAX": jax.__version__,
        "configuration": hashlib.sha256(configuration.encode()).hexdigest()[:16],
    }
    try:
        jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM from Python
        with _errors_only():
            jax.distributed.initialize(**settings)
            count, told = len(jax.devices()), gather_texts(json.dumps([socket.gethostname()[:64], same]))
    except Exception as error:  # whatever a kind of cluster raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the processes of this cluster ({cluster.source}) cannot be joined: {reason}; name them by"
            " --coordinator=HOST:PORT --processes=N --process=I, or use --processes=1 for this machine alone"
        ) from error
    processes = [json.loads(each) for each in told]
    hosts = _counted(len({host for host, _ in processes}), "host")
    print(
        f"lcrag: process {jax.process_index()} of {len(processes)} on {hosts} ({cluster.source}):"
        f" {_counted(count, 'device')}, {jax.local_device_count()} here ({jax.local_devices()[0].device_kind})",
        flush=True,
    )
    _check_same(processes, configuration)


def _check_same(processes: Sequence[tuple[str, Mapping[str, str]]], configuration: str) -> None:
    """Compares the processes, given as (host, name -> text that must be the same)."""
    first, wanted = processes[0]
    for number, (host, values) in enumerate(processes):
        for name, value in values.items():
            if value != wanted[name]:
                where = f" ({_difference(configuration, number)})" if name == "configuration" else ""
                raise UserError(
                    f"the {name} of process {number} on {host} is not that of process 0 on {first}{where}: give all of"
                    " them the same command, files, bindings and versions"
                )


def _difference(configuration: str, number: int) -> str:
    """Returns the first statement that only one of processes `number` and 0 has; all processes must call it."""
    from lcrag.episodes.agreement import exchanged

    told = [each.decode().splitlines() for each in exchanged("joining", configuration.encode())]
    pairs = ((number, 0), (0, number))
    lines = ((one, line) for one, other in pairs for line in told[one] if line not in told[other])
    one, line = next(lines, (number, "the same in another order"))
    return f"process {one} has {' '.join(line.split())[:SHOWN]}"


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """Redirects libraries' standard output to standard error, so the first line is this program's."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def has_joined() -> bool:
    """Whether `jax.distributed` is initialised; does not import JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def several_processes() -> bool:
    """Whether this process has joined others; does not import JAX."""
    return has_joined() and sys.modules["jax"].process_count() > 1


def gather_texts(text: str) -> list[str]:
    """Returns a short text of each process, by process index; all processes must call this at the same point."""
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0"), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(encoded)).reshape(-1, TEXT_BYTES)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows]


def leave() -> None:
    """Leaves the cluster before this process ends with an error; waits at most `LEAVE_SECONDS` for the others."""
    import jax

    leaving = threading.Thread(target=jax.distributed.shutdown, name="leaving", daemon=True)
    leaving.start()
    leaving.join(LEAVE_SECONDS)


def is_lost(error: BaseException) -> bool:
    """Whether an exception comes from a collective in which another process no longer takes part."""
    return several_processes() and any(word in str(error).lower() for word in LOST_WORDS)
