"""Runs the points of a study as processes of `lcrag`, several at once; the first failure ends the study."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lcrag.commands.study.points import Point, unfinished
from lcrag.errors import UserError

LCRAG = (sys.executable, "-m", "lcrag.main")
POLL_SECONDS = 0.05


def log_of(folder: Path) -> Path:
    """Returns the log file of a point, next to its folder."""
    return folder.with_name(f"{folder.name}.log")


def commands(point: Point, report: Sequence[str]) -> list[list[str]]:
    """Returns the arguments of the `lcrag` commands that a point still needs: its own and the one that records it.

    Args:
      point: A point that is not recorded yet or, if it is not reported, not finished.
      report: The study's arguments of `lcrag report`, which select the metrics that are recorded.
    """
    words = [] if point.finished else [point.words()]
    if point.record is not None:
        words.append(["report", str(point.folder), *report, f"--records={point.record.parent}"])
    return words


def run_points(points: Sequence[Point], jobs: int, report: Sequence[str]) -> None:
    """Runs the unfinished points, each after the points that it needs, and records their results.

    Concurrent points share the cores evenly, each with its own: on two cores, two short trainings at once took 84
    seconds instead of 93. A point that is started while there are fewer than `jobs` may use all.

    Args:
      points: The points, in sequential order.
      jobs: Number of concurrent points.
      report: The study's arguments of `lcrag report`.

    Raises:
      UserError: A point failed; the others were stopped.
    """
    waiting = unfinished(points)
    print(f"{len(waiting)} of {len(points)} runs to do", flush=True)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [cores[len(cores) * job // jobs : len(cores) * (job + 1) // jobs] for job in range(jobs)]
    free = list(range(jobs))
    running: dict[Path, tuple[Point, int, list[list[str]], subprocess.Popen, list[int]]] = {}
    try:
        while waiting or running:
            blocked = {point.folder for point in waiting} | running.keys()
            ready = [each for each in waiting if blocked.isdisjoint(each.needs)][: len(free)]
            crowded = len(running) + len(ready) == jobs
            for point in ready:
                waiting.remove(point)
                job, left = free.pop(), commands(point, report)
                own = shares[job] if crowded else []
                log_of(point.folder).parent.mkdir(parents=True, exist_ok=True)
                # What a finished run printed is kept when it is only recorded.
                process = _start(point, left.pop(0), own, "a" if point.finished else "w")
                running[point.folder] = (point, job, left, process, own)
                print(f"{point.folder} started, its log is {log_of(point.folder)}", flush=True)
            time.sleep(POLL_SECONDS)
            for folder, (point, job, left, process, own) in list(running.items()):
                if process.poll() is None:
                    continue
                _check(point, process.returncode, recorded=not left)
                if left:
                    running[folder] = (point, job, left, _start(point, left.pop(0), own, "a"), own)
                    continue
                del running[folder]
                free.append(job)
                print(f"{folder} finished", flush=True)
    finally:
        for _, _, _, process, _ in running.values():
            process.terminate()  # a training saves its last finished step
        for _, _, _, process, _ in running.values():
            process.wait()


def _start(point: Point, words: Sequence[str], cores: Sequence[int], mode: str) -> subprocess.Popen:
    with log_of(point.folder).open(mode, encoding="utf-8") as log:
        process = subprocess.Popen([*LCRAG, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    if cores:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(process.pid, cores)
    return process


def _check(point: Point, status: int, recorded: bool) -> None:
    """Raises a UserError if a command of a point failed or left no result."""
    log = log_of(point.folder)
    if status:
        lines = filter(str.strip, log.read_text(encoding="utf-8", errors="replace").split("\n"))
        said = [*lines, "it printed nothing"][-2 if log.stat().st_size else -1].removeprefix("lcrag: ")
        raise UserError(f"{point.folder} failed with status {status}, see {log}: {said}")
    if not point.finished or (recorded and point.record is not None and not point.record.exists()):
        raise UserError(f"{point.folder} ended without its result, see {log}")


def run_report(words: Sequence[str]) -> None:
    """Runs `lcrag report`, which prints its tables.

    Raises:
      UserError: It failed; its own message is on standard error.
    """
    if subprocess.run([*LCRAG, *words]).returncode:
        raise UserError("every run of the study has finished, but the report on them failed")
