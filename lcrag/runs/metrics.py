"""Logs of a run's metrics: one JSON object a step in `metrics.jsonl`, TensorBoard events, and Weights & Biases."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lcrag.errors import UserError, typed, without_secrets
from lcrag.files import json_line, naming, write_text

METRICS = "metrics.jsonl"
TENSORBOARD, WANDB = "tensorboard", "wandb"


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Trackers:
    """Where metrics go in addition to `metrics.jsonl`."""

    names: Sequence[str] = (TENSORBOARD,)  # "tensorboard", "wandb", both or none
    project: str = "lcrag"  # of Weights & Biases
    offline: bool = False  # whether Weights & Biases writes to the run's folder only, for a later `wandb sync`

    def __post_init__(self):
        if unknown := [name for name in self.names if name not in (TENSORBOARD, WANDB)]:
            raise UserError(f"there is no tracker {unknown[0]!r} for Trackers.names: use {TENSORBOARD} or {WANDB}")
        if WANDB in self.names and importlib.util.find_spec(WANDB) is None:
            raise UserError("Trackers.names has wandb, which is not there: pip install 'lcrag[wandb]', or leave it out")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of a run's `metrics.jsonl`, oldest first; ignores an incomplete last line."""
    path = folder / METRICS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # text after the last newline is incomplete
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) - 1:
                continue
            raise UserError(f"{path}:{number} is not JSON; remove that line to continue") from error
    return records


class MetricsLog(contextlib.AbstractContextManager["MetricsLog"]):
    """Appends one record a step, which is on disk when `write` returns.

    Args:
      folder: Folder of the run; None: nothing is written, in a process that is not the writer.
      after_step: Existing records are kept up to and including this step, and dropped after it.
      settings: Where else the metrics go.
    """

    def __init__(self, folder: Path | None, *, after_step: int = -1, settings: Trackers | None = None):
        self._closed_at_end = contextlib.ExitStack()
        self._trackers: list[EventFile | WandbRun] = []
        self._path = folder and folder / METRICS
        if folder is None or self._path is None:
            return
        kept = [record for record in read_metrics(folder) if record["step"] <= after_step]
        write_text(self._path, "".join(map(json_line, kept)))
        self._file = self._closed_at_end.enter_context(self._path.open("a", encoding="utf-8"))
        settings = settings or Trackers()
        if TENSORBOARD in settings.names:
            self._trackers.append(EventFile(folder, first_step=after_step + 1))
        if WANDB in settings.names:
            self._trackers.append(WandbRun(folder, settings))
        for tracker in self._trackers:
            self._closed_at_end.callback(tracker.close)
        self._last_step = kept[-1]["step"] if kept else -1

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the record of a step, `{"step": step, name: number, ...}`; non-finite numbers become null.

        Raises:
          ValueError: the step is not later than the last one.
        """
        if self._path is None:
            return
        if step <= self._last_step:
            raise ValueError(f"step {step} is already written; the last one is {self._last_step}")
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in values.items()}
        with naming(self._path):
            self._file.write(json_line({"step": step, **numbers}))
            self._file.flush()
        for tracker in self._trackers:
            tracker.write(step, {name: float(value) for name, value in numbers.items()})
        self._last_step = step

    def __exit__(self, *exception: object) -> None:
        self._closed_at_end.close()


class EventFile:
    """A TensorBoard event file of scalars, written without TensorFlow (which takes seconds to import).

    TensorBoard reads all event files of a folder as one run; a new file replaces the scalars of `first_step` and later
    steps in older files.
    """

    def __init__(self, folder: Path, *, first_step: int = 0):
        from tensorboard.compat.proto import event_pb2, summary_pb2  # here, because --help needs none of it
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._writer = RecordWriter(self._path.open("wb"))
        self._add(file_version="brain.Event:2")
        self._add(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START), step=first_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step."""
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=self._summary(value=scalars))

    def _add(self, **content: Any) -> None:
        with naming(self._path):
            self._writer.write(self._event(wall_time=time.time(), **content).SerializeToString())
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases with the name of the run's folder; its id is kept there, to be continued.

    wandb sends on a process of its own. An error of it is printed once, and does not end the training.
    """

    def __init__(self, folder: Path, settings: Trackers):
        import wandb

        kept = folder / "wandb_run.txt"
        known = kept.read_text(encoding="utf-8").strip() if kept.exists() else None
        quiet = wandb.Settings(silent=True, console="off")
        mode = "offline" if settings.offline else None
        about = {"project": settings.project, "name": folder.absolute().name, "dir": str(folder), "settings": quiet}
        self._run = self._tried(lambda: wandb.init(id=known, resume="allow", mode=mode, **about))
        if self._run is not None:
            write_text(kept, f"{self._run.id}\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step; steps that a continued run repeats are ignored by the service."""
        if self._run is not None:
            self._tried(lambda: self._run.log(dict(values), step=step))

    def close(self) -> None:
        """Waits until all metrics are sent or on disk."""
        if self._run is not None:
            self._tried(self._run.finish)

    def _tried(self, call):
        try:
            return call()
        except Exception as error:  # training continues after any error of a tracker
            reason = " ".join(without_secrets(f"{type(error).__name__}: {error}").split())
            print(f"lcrag: wandb failed ({reason}); metrics.jsonl has all metrics", file=sys.stderr)
            self._run = None
            return None
