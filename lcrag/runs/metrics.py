"""Logs of a run's metrics: one JSON object per step in `metrics.jsonl`, TensorBoard events, and Weights & Biases."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from lcrag.errors import UserError
from lcrag.files import naming, write_text
from lcrag.runs.files import json_line
from lcrag.runs.trackers import TENSORBOARD, WANDB, Trackers, WandbRun

METRICS = "metrics.jsonl"
USUAL_TRACKERS = Trackers()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of a run's `metrics.jsonl`, oldest first; ignores an incomplete last line.

    Raises:
      UserError: a line before the last cannot be read.
    """
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
    """Appends one record per step, which is on disk when `write` returns.

    Args:
      folder: Folder of the run.
      after_step: Existing records are kept up to and including this step, and dropped after it.
      settings: Where else the metrics go.
    """

    def __init__(self, folder: Path, *, after_step: int = -1, settings: Trackers = USUAL_TRACKERS):
        kept = [record for record in read_metrics(folder) if record["step"] <= after_step]
        write_text(folder / METRICS, "".join(map(json_line, kept)))
        self._file = (folder / METRICS).open("a", encoding="utf-8")
        self._trackers: list[EventFile | WandbRun] = []
        if TENSORBOARD in settings.names:
            self._trackers.append(EventFile(folder, first_step=after_step + 1))
        if WANDB in settings.names:
            self._trackers.append(WandbRun(folder, settings))
        self._last_step = kept[-1]["step"] if kept else -1

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the record of a step, `{"step": step, name: number, ...}`; non-finite numbers become null.

        Raises:
          ValueError: the step is not later than the last one.
        """
        if step <= self._last_step:
            raise ValueError(f"step {step} is already written; the last one is {self._last_step}")
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in values.items()}
        with naming(Path(self._file.name)):
            self._file.write(json_line({"step": step, **numbers}))
            self._file.flush()
        for tracker in self._trackers:
            tracker.write(step, {name: float(value) for name, value in numbers.items()})
        self._last_step = step

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        for tracker in self._trackers:
            tracker.close()


class UnwrittenLog(contextlib.AbstractContextManager["UnwrittenLog"]):
    """The metrics log of a process that does not write to the run's folder."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def __exit__(self, *exception: object) -> None:
        pass


class EventFile:
    """A TensorBoard event file of scalars, written without TensorFlow (which takes seconds to import).

    TensorBoard reads all event files of a folder as one run; a new file replaces the scalars of `first_step` and later
    steps in older files.
    """

    def __init__(self, folder: Path, *, first_step: int = 0):
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._writer = RecordWriter(self._path.open("wb"))
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(session_log=start, step=first_step))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step."""
        scalars = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=scalars)))

    def _add(self, event: event_pb2.Event) -> None:
        event.wall_time = time.time()
        with naming(self._path):
            self._writer.write(event.SerializeToString())
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
