"""The numbers of a run, one JSON object a step, and the same as TensorBoard events beside it."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from lcrag.app.runs.atomic import json_line, write_text
from lcrag.app.runs.events import EventFile
from lcrag.errors import UserError

METRICS = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every whole record of a run's `metrics.jsonl`, oldest first; a torn last line is left out.

    Raises:
      UserError: A line before the last cannot be read.
    """
    path = folder / METRICS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline was cut short
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) - 1:
                continue
            raise UserError(f"{path}:{number} is not JSON; remove that line to go on") from error
    return records


class MetricsLog:
    """Appends one record a step; each is on disk before `write` returns."""

    def __init__(self, folder: Path, *, after_step: int = -1):
        """Opens the log of `folder`, keeping the records up to and including `after_step`."""
        kept = [record for record in read_metrics(folder) if record["step"] <= after_step]
        write_text(folder / METRICS, "".join(map(json_line, kept)))
        self._file = (folder / METRICS).open("a", encoding="utf-8")
        self._events = EventFile(folder, first_step=after_step + 1)
        self._last_step = kept[-1]["step"] if kept else -1

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the record of a step, `{"step": step, name: number, ...}`; a number that is not finite is null.

        Raises:
          ValueError: The step is not later than the last one.
        """
        if step <= self._last_step:
            raise ValueError(f"step {step} is already written; the last one is {self._last_step}")
        self._file.write(json_line({"step": step, **{name: _number(value) for name, value in values.items()}}))
        self._file.flush()
        self._events.write(step, {name: float(value) for name, value in values.items()})
        self._last_step = step

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        self._events.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class UnwrittenLog(contextlib.AbstractContextManager["UnwrittenLog"]):
    """The log of a process that leaves the writing to another one."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Closes nothing."""

    def __exit__(self, *exception: object) -> None:
        self.close()


def _number(value: Any) -> int | float:
    return value if isinstance(value, int) else float(value)
