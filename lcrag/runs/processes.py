"""Processes: the compilation cache of one, how several find each other and end, and signals.

`jax.distributed` does all communication. Nothing here imports JAX for a single process.
"""

import contextlib
import glob
import hashlib
import os
import platform
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any

from lcrag.errors import UserError
from lcrag.files import cache_folder

OPTIONS = {
    "--coordinator": "HOST:PORT of the first process; SLURM, Open MPI and Cloud TPU know it",
    "--processes": "number of processes; 1: do not look for others",
    "--process": "index of this process, from 0",
    "--heartbeat_seconds": "silence after which a process counts as lost, and the others end; 100",
}
GOOGLE, TPUS = "0x1ae0", {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}  # as JAX has them
LEAVE_SECONDS = 10.0  # how long a process that ends early waits for the others, before it leaves them


def find_processes(options: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the arguments of `jax.distributed.initialize`, or None on a single machine; does not import JAX.

    `options` are values of `OPTIONS`; without them JAX detects SLURM, Open MPI and Cloud TPUs by itself.
    """
    numbers: dict[str, int] = {}
    for option in ("--processes", "--process", "--heartbeat_seconds"):
        if option in options:
            if not options[option].isdecimal():
                raise UserError(f"{option} takes a whole number, not {options[option]!r}")
            numbers[option] = int(options[option])
    settings = {"heartbeat_timeout_seconds": max(1, numbers.get("--heartbeat_seconds", 100))}
    count, index, coordinator = numbers.get("--processes"), numbers.get("--process"), options.get("--coordinator")
    if count == 1 and not index:
        return None
    if count is None and index is None and coordinator is None:
        counted = (os.environ.get(name, "1") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
        hosts = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES") or ""
        on_tpu = "TPU_SKIP_MDS_QUERY" not in os.environ and _has_tpu()  # JAX asks the VM for more
        if not (any(number.isdecimal() and int(number) > 1 for number in counted) or "," in hosts or on_tpu):
            return None
        # JAX would show a process of SLURM or Open MPI one GPU only, also if it is alone on its node; [] shows it all.
        tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or ""
        alone = re.fullmatch(r"1(\(x\d+\))?", tasks) and "JAX_LOCAL_DEVICE_IDS" not in os.environ
        return settings | ({"local_device_ids": []} if alone else {})
    if count is None or index is None or index >= count or not re.fullmatch(r".+:\d{1,5}", coordinator or ""):
        raise UserError(
            "several processes need --coordinator=HOST:PORT --processes=N --process=I, the address of the first one,"
            " their number, and the index of this one, from 0 to N - 1"
        )
    known = {"coordinator_address": coordinator, "num_processes": count, "process_id": index}
    return settings | known | {"cluster_detection_method": "deactivate"}


def _has_tpu() -> bool:
    """Whether this machine has TPU chips, by their numbers on the PCI bus: v5e and later have no /dev/accel*."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with contextlib.suppress(OSError):
            if vendor.read_text().strip() == GOOGLE and vendor.with_name("device").read_text().strip() in TPUS:
                return True
    return False


def join(found: Mapping[str, Any], configuration: str) -> None:
    """Joins the other processes, checks that they have this configuration, and prints how many devices there are."""
    import jax

    from lcrag.collectives import check_same_everywhere
    from lcrag.retrieval.remote import is_loopback

    # gRPC would ask the environment's HTTP proxy for a coordinator on this machine too, until JAX aborts the process
    coordinator = found.get("coordinator_address", "").rpartition(":")[0].strip("[]")
    if is_loopback(coordinator):
        others = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""
        os.environ["no_grpc_proxy"] = f"{coordinator},{others}".rstrip(",")
    try:
        jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM from Python
        if glob.glob("/dev/nvidia[0-9]*"):
            # XLA divides the tuning of a program among processes, which must all compile it; but JAX fills only the
            # first one's cache, which would then leave the others waiting.
            jax.config.update("jax_enable_compilation_cache", False)
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

    All raise an exception of the writer, the others as a UserError, so none waits for one that has ended.
    """
    failure: Exception | None = None
    if is_writer():
        try:
            work()
        except Exception as error:
            failure = error
    message = "" if failure is None else str(failure) or type(failure).__name__
    if has_joined():
        from lcrag.collectives import allgather_bytes  # here, because it imports JAX

        message = allgather_bytes("the writer's message", message.encode())[0].decode()
    if failure is not None:
        raise failure
    if message:
        raise UserError(message)


# --- Signals ---
# No handler raises: in the middle of a thread pool or a queue, an exception leaves a lock that other threads wait for.
# A handler notes the signal, and the command raises it where it can end (`raise_stopped`) or, if it does not get there
# in time, is ended by a thread: whatever is on disk is whole at any time.


SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_SECONDS = 2.0  # how long a signal waits for the command, and a stopped command for a thread
SHOW_CURSOR = "\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """Raised when the signal `number` ends the command."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_status(interruption: KeyboardInterrupt) -> int:
    """Returns the exit status that shells expect after a signal: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (interruption.number if isinstance(interruption, Stopped) else signal.SIGINT)


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Handles the signals within the block, except those that the process was started to ignore (`nohup`, `&`).

    Python handles signals in the main thread only: in other threads the block runs without the handler.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    changed = {number: old for number, old in before.items() if _in_main() and old not in (signal.SIG_IGN, None)}
    try:
        for number in changed:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class NotedSignals:
    """Notes SIGTERM and Ctrl-C within its block, without raising anything.

    Attributes:
      number: The first signal, of this process or of another one that told it; 0: none.
      held: Whether `raise_stopped` waits for the end of the block, or for `let_through`.
    """

    def __init__(self, held: bool = False) -> None:
        self.number, self.held = 0, held
        self._impatient, self._handled = False, handled(self.note, *SIGNALS)

    def __enter__(self) -> "NotedSignals":
        self._handled.__enter__()
        if _in_main():
            self.number = _noting[-1].number if _noting else 0
            _noting.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if self in _noting:
            _noting.remove(self)
        self._handled.__exit__(None, None, None)

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Handles a signal."""
        self._impatient = bool(self.number) and number == signal.SIGINT
        self.number = self.number or number

    def raise_noted(self) -> None:
        """Raises `Stopped` if a signal came, or KeyboardInterrupt if a Ctrl-C followed it: then nothing is saved."""
        if self.number:
            _ending.set()
            self.held = True  # what is saved now must not be interrupted
            raise KeyboardInterrupt if self._impatient else Stopped(self.number)

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Lets a held signal end the block by `Stopped` at a `raise_stopped`, at its beginning, or at its end."""
        self.held = False
        try:
            self.raise_noted()
            yield
            self.raise_noted()
        finally:
            self.held = True


_noting: list[NotedSignals] = []  # of the main thread, innermost last
_ending = threading.Event()  # a signal was raised, and the command ends by itself


def is_stopping() -> bool:
    """Whether a signal came."""
    return bool(_noting and _noting[-1].number)


def raise_stopped() -> None:
    """Raises `Stopped` if a signal came and is not held; commands call it in the main thread, wherever they can end."""
    if _in_main() and _noting and not _noting[-1].held:
        _noting[-1].raise_noted()


@contextlib.contextmanager
def stopped_by_signals(end: Callable[[int], None] | None = None) -> Iterator[None]:
    """Notes signals within the block, which ends by `Stopped` at a `raise_stopped` or at its end.

    `end`, if given, is called with the signal in another thread, if the block neither does so in `PATIENCE_SECONDS` nor
    holds the signal, and at once after a Ctrl-C that follows another signal.
    """
    _ending.clear()

    def watch(reader: socket.socket, end: Callable[[int], None]) -> None:
        """Calls `end` for the signals whose numbers come from `reader`."""
        first, ended = 0, False
        with reader:
            while not ended:
                if not select.select([reader], [], [], PATIENCE_SECONDS if first else None)[0]:
                    if not _ending.is_set() and _noting[-1:] == [noted]:
                        end(first)
                    continue
                numbers = reader.recv(64)
                ended = not numbers
                for number in numbers:
                    # Others, such as a server, may handle signals in the meantime.
                    if getattr(signal.getsignal(number), "__self__", None) in _noting:
                        if first and number == signal.SIGINT:
                            end(number)
                        first = first or number

    with contextlib.ExitStack() as entered:
        noted = entered.enter_context(NotedSignals())
        if end is not None and _in_main():
            # Python calls handlers between two instructions, which may be minutes; this descriptor is written at once.
            reader, writer = socket.socketpair()
            entered.enter_context(writer).setblocking(False)
            entered.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False))
            threading.Thread(target=watch, args=(reader, end), name="signals", daemon=True).start()
        yield
        noted.raise_noted()


def end_process(status: int) -> None:
    """Ends the process at once, without waiting for threads that still search or compile.

    It flushes the output first. The caller must have saved its results.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream.isatty():
                stream.write(SHOW_CURSOR)  # a live display may have hidden it
            stream.flush()
    os._exit(status)


# --- JAX's persistent cache of compilations ---

FOLDER, SWITCH = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def set_compilation_cache(environment: MutableMapping[str, str], *, enabled: bool) -> None:
    """Turns the cache on or off by environment variables, which must happen before JAX is imported.

    The folder is `$XDG_CACHE_HOME/lcrag/compiled/<kind of processor>`, because programs for one CPU may crash on
    another that shares the home folder. JAX's own variables, if set, take precedence.
    """
    if not enabled:
        environment[SWITCH] = "false"
        return
    for name, value in SETTINGS.items():
        environment.setdefault(name, value)
    if FOLDER in environment:
        return
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = [platform.processor()]
    kind = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}) or lines[:1]
    processor = f"{platform.machine()}-{hashlib.sha256(os.linesep.join(kind).encode()).hexdigest()[:8]}"
    try:
        environment[FOLDER] = str(cache_folder(environment) / "compiled" / processor)
    except UserError:  # a command that needs the folder of caches for more says so
        environment[SWITCH] = "false"
