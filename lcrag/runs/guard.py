"""Reports the abrupt end of one of several processes in one line.

JAX's distributed client ends a process with `abort()` and a C++ stack trace if it does not find the others, or if one
of them is lost. A command with several processes therefore runs in a child process. The parent forwards its errors and
signals, and prints in one sentence why it ended.
"""

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable

from lcrag.errors import without_secrets
from lcrag.runs.cluster import LOST, Cluster

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FATAL = re.compile(rb"^F\d{4} .*Terminating process because the JAX distributed service detected fatal errors")
NOISE = (b"[Gloo] Rank ",)
UNHEALTHY = re.compile(r"stopped sending heartbeats\):\s*([\d\s/a-z_:]*?)\s*The tasks", re.IGNORECASE)
PR_SET_PDEATHSIG = 1
DRAIN_SECONDS = 5.0


def guard(cluster: Cluster) -> None:
    """Returns in a child process, which does the work; the parent never returns, and ends with the child's status.

    Must be called while the process has one thread, so before JAX is imported.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    # No signal may be lost while the child is created.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # the terminal's Ctrl-C comes once, through the parent
        _end_with_parent()
        os.dup2(writer, sys.stderr.fileno())
        os.close(writer)
        os.close(reader)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    os.close(writer)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    said: list[bytes] = []
    passing = threading.Thread(target=lambda: said.append(pass_on(reader, _write_error)), daemon=True)
    passing.start()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    passing.join(DRAIN_SECONDS)  # what the child has started may live on, and hold the pipe
    sentence, status = explanation(cluster, status, b"".join(said).decode(errors="replace"))
    if sentence:
        print(f"lcrag: error: {without_secrets(sentence)}", file=sys.stderr, flush=True)
    os._exit(status)


def _write_error(text: bytes) -> None:
    os.write(sys.stderr.fileno(), text)


def _end_with_parent() -> None:
    """Makes a SIGKILL of the parent also end this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def pass_on(reader: int, write: Callable[[bytes], object]) -> bytes:
    """Writes whole lines until the pipe ends; the fatal line and everything after it are returned instead."""
    rest, fatal = b"", b""
    while chunk := os.read(reader, 65536):
        if fatal:
            fatal += chunk
            continue
        whole = (rest + chunk).rfind(b"\n") + 1
        lines, rest = (rest + chunk)[:whole].splitlines(keepends=True), (rest + chunk)[whole:]
        for number, line in enumerate(lines):
            if FATAL.match(line):
                fatal = b"".join(lines[number:]) + rest
                break
            if not line.startswith(NOISE):
                write(line)
    if rest and not fatal:
        write(rest)
    return fatal


def explanation(cluster: Cluster, status: int, fatal: str) -> tuple[str, int]:
    """Returns a sentence about the end of the child, empty if the child printed one itself, and the exit status.

    Args:
      cluster: The cluster.
      status: Exit status, or the negative number of a signal.
      fatal: The last output of JAX's client.
    """
    number = cluster.arguments.get("process_id")
    this = "this process" if number is None else f"process {number}"
    if "RegisterTask" in fatal:
        where = cluster.arguments.get("coordinator_address", f"the address that {cluster.source} names")
        return (
            f"{this} and the others did not find each other at {where} within {cluster.join_seconds} seconds"
            " (--join_seconds): start every number from 0 to --processes - 1 once, with the same --coordinator, whose"
            " port all hosts can reach"
        ), 2
    mend = "the same command continues from what is saved"
    if fatal:
        lost = UNHEALTHY.search(fatal)
        who = f"process {', '.join(re.findall('[0-9]+', lost[1]))}" if lost else "another process (often process 0)"
        return f"{who} was lost, so {this} ended too; see its log; {mend}", LOST
    if status < 0:
        name = signal.Signals(-status).name
        why = ", for want of memory perhaps" if name == "SIGKILL" else ""
        return f"{this} was ended by {name}{why}; {mend}", 128 - status
    return "", status
