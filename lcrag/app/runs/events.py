"""TensorBoard event files, written without TensorFlow (which takes seconds to import)."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """One event file of scalars; TensorBoard reads all those of a folder as one run."""

    def __init__(self, folder: Path, *, first_step: int = 0):
        """Makes a new file in `folder`; what older files say of `first_step` and later steps is withdrawn."""
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("wb"))
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(session_log=start, step=first_step))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step."""
        scalars = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=scalars)))

    def _add(self, event: event_pb2.Event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
