"""Runs the points of a study as processes of `lcrag`, several at once; the first failure ends the study."""

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lcrag.commands.study.points import Point, left
from lcrag.errors import UserError
from lcrag.runs.display import make_console

LCRAG = (sys.executable, "-m", "lcrag.main")
LOOK_SECONDS = 0.05


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
    waiting = left(points)
    running: dict[Path, _Running] = {}
    free = _shares_of_cores(jobs)
    with _ended(running), _display(make_console(), len(points), len(points) - len(waiting)) as display:
        while waiting or running:
            blocked = {point.folder for point in waiting} | running.keys()
            ready = [each for each in waiting if blocked.isdisjoint(each.needs)][: jobs - len(running)]
            shared = len(running) + len(ready) == jobs
            for point in ready:
                waiting.remove(point)
                running[point.folder] = _Running(point, commands(point, report), free.pop(), shared)
                display.started(point)
            time.sleep(LOOK_SECONDS)
            for folder, each in list(running.items()):
                if each.advance():
                    free.append(running.pop(folder).share)
                    display.ended(each.point)


def _shares_of_cores(jobs: int) -> list[set[int]]:
    """Returns the cores of each concurrent point; empty sets where there are too few, or cores cannot be chosen."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    bounds = [len(cores) * job // jobs for job in range(jobs + 1)] if jobs <= len(cores) else [0] * (jobs + 1)
    return [set(cores[first:last]) for first, last in itertools.pairwise(bounds)]


class _Running:
    """The commands of a point, one after the other, on its share of the cores; its log has the output of all."""

    def __init__(self, point: Point, commands: Sequence[Sequence[str]], share: set[int], shared: bool):
        self.point, self.share, self._left = point, share, list(commands)
        self._cores = share if shared else set()
        log_of(point.folder).parent.mkdir(parents=True, exist_ok=True)
        self.process = self._start("a" if point.finished else "w")  # what the finished run printed is kept

    def _start(self, mode: str) -> subprocess.Popen:
        words = [*LCRAG, *self._left.pop(0)]
        with log_of(self.point.folder).open(mode, encoding="utf-8") as file:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        if self._cores:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.sched_setaffinity(process.pid, self._cores)
        return process

    def advance(self) -> bool:
        """Starts the next command if the running one has ended; returns whether all have ended.

        Raises:
          UserError: one failed, or left no result.
        """
        if self.process.poll() is None:
            return False
        _check(self.point, self.process.returncode, recorded=not self._left)
        if self._left:
            self.process = self._start("a")
            return False
        return True


def _check(point: Point, status: int, recorded: bool) -> None:
    if status:
        log = log_of(point.folder)
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "it printed nothing").removeprefix("lcrag: ")
        raise UserError(f"{point.folder} failed with status {status}, see {log}: {said}")
    if not point.finished:
        raise UserError(f"{point.folder} ended without {point.done}, see {log_of(point.folder)}")
    if recorded and point.record is not None and not point.record.exists():
        raise UserError(f"{point.folder} ended without its record {point.record}, see {log_of(point.folder)}")


@contextlib.contextmanager
def _ended(running: Mapping[Path, _Running]) -> Iterator[None]:
    """Stops the running points, and waits for them: a training saves its last finished step."""
    try:
        yield
    finally:
        for each in running.values():
            each.process.terminate()
        for each in running.values():
            each.process.wait()


def run_report(words: Sequence[str]) -> None:
    """Runs `lcrag report`, which prints its tables.

    Raises:
      UserError: It failed; its own message is on standard error.
    """
    if subprocess.run([*LCRAG, *words]).returncode:
        raise UserError("every run of the study has finished, but the report on them failed")


class _Display:
    """A progress bar over all points, with the names of the running ones; lines if there is no terminal."""

    def __init__(self, progress: Progress, console: Console, points: int, finished: int):
        self._progress, self._console = progress, console
        self._tasks: dict[Path, TaskID] = {}
        self._all = progress.add_task("study", total=points, completed=finished)
        self._report(f"{points - finished} of {points} runs to do")

    def started(self, point: Point) -> None:
        """Shows that a point runs."""
        self._tasks[point.folder] = self._progress.add_task(str(point.folder), total=None)
        self._report(f"{point.folder} started, its log is {log_of(point.folder)}")

    def ended(self, point: Point) -> None:
        """Shows that a point has finished."""
        self._progress.remove_task(self._tasks.pop(point.folder))
        self._progress.advance(self._all)
        self._report(f"{point.folder} finished")

    def _report(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _display(console: Console, points: int, finished: int) -> Iterator[_Display]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        yield _Display(progress, console, points, finished)
