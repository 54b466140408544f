"""Runs of `lcrag train` in child processes that SIGKILL ends at a chosen call or at any moment.

`python killed_runs.py` imports the package once and forks a child for every order on standard input, before JAX has
started any thread; `Lives` gives the orders.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

# What a run does, as (module, attribute path) of the function that does it.
PHASES = {
    "folder": ("lcrag.runs.folder", "write_json"),
    "restore": ("lcrag.learning.checkpoints", "Checkpoints.continue_from"),
    "rollout": ("lcrag.sampling", "Sampler.decode"),
    "retrieval": ("lcrag.retrieval", "Collections.search"),
    "rewards": ("lcrag.train.method", "Method.score"),
    "update": ("lcrag.learning.learners", "Learner.learn"),
    "metrics": ("lcrag.runs.folder", "MetricsLog.write"),
    "episodes": ("lcrag.runs.folder", "RunFolder.write_episodes"),
    "checkpoint": ("lcrag.learning.checkpoints", "Checkpoints.save"),
    "manifest": ("lcrag.learning.checkpoints", "write_manifest"),
    "evaluation": ("lcrag.train.evaluation", "Evaluation.run"),
    "policy": ("lcrag.train.rl", "save_policy"),
    "fsync": ("os", "fsync"),
    "replace": ("os", "replace"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """When SIGKILL comes: `seconds` after the beginning of the `call`-th call of a phase, or just after its end."""

    phase: str
    call: int = 1
    seconds: float = 0.0
    after: bool = False


class Lives:
    """A process that makes runs, each a child of its own.

    Args:
      log: What the children print.
    """

    def __init__(self, log: Path):
        line = [sys.executable, __file__, log]
        self._parent = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, tiny: Path, output: Path, bindings: tuple[str, ...], kill: Kill | None = None) -> tuple[int, str]:
        """Returns the exit status of a run, negative for a signal, and the phase in which it ended."""
        order = {"tiny": str(tiny), "output": str(output), "bindings": bindings}
        print(json.dumps(order | {"kill": kill and dataclasses.asdict(kill)}), file=self._parent.stdin, flush=True)
        status, phase = json.loads(self._parent.stdout.readline())
        return status, phase

    def __enter__(self) -> "Lives":
        return self

    def __exit__(self, *exception: object) -> None:
        self._parent.stdin.close()
        self._parent.wait(timeout=60)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def within(phase: str, note: int, stack: list[str]) -> Iterator[None]:
    """Notes the innermost phase where the parent finds it after a kill."""
    stack.append(phase)
    os.pwrite(note, stack[-1].ljust(16).encode(), 0)
    try:
        yield
    finally:
        stack.pop()
        os.pwrite(note, (stack[-1] if stack else "between").ljust(16).encode(), 0)


def watch(phase: str, kill: Kill | None, note: int, stack: list[str]) -> None:
    """Wraps the function of a phase, in which the kill may come."""
    module, path = PHASES[phase]
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    original, calls = getattr(owner, name), []

    def watched(*arguments, **keywords):
        with within(phase, note, stack):
            calls.append(None)
            due = kill is not None and kill.phase == phase and len(calls) == kill.call
            if due and not kill.after:
                if kill.seconds == 0:
                    die()
                threading.Timer(kill.seconds, die).start()
            result = original(*arguments, **keywords)
            if due and kill.after:
                die()
            return result

    setattr(owner, name, watched)


def live(order: dict, log: Path, note: int) -> int:
    """One run, in a child."""
    from experiment_parts import run

    import lcrag.evaluation.plots

    lcrag.evaluation.plots.draw_training_curves = lambda *about: None  # a third of the time
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    kill, stack = order["kill"] and Kill(**order["kill"]), []
    for phase in PHASES:
        watch(phase, kill, note, stack)
    return run("train", Path(order["tiny"]), *order["bindings"], output=Path(order["output"]))


def main(log: Path) -> None:
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent)]
    import annotation_checks

    annotation_checks.install()  # as the tests themselves do, which continue some of the runs
    import experiment_parts  # noqa: F401  children find everything imported

    importlib.import_module("lcrag.train.rl")
    note = os.memfd_create("phase")
    for line in sys.stdin:
        os.pwrite(note, b"start".ljust(16), 0)
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = live(json.loads(line), log, note)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([status, os.pread(note, 16, 0).decode().strip()]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
