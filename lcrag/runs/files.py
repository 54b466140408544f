"""Crash-safe JSON files: files that are replaced atomically, and journals that an interrupted run continues."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lcrag.errors import UserError
from lcrag.files import naming, write_text


def write_json(path: Path, value: Any) -> None:
    """Replaces a file with indented JSON."""
    write_text(path, json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Replaces a file with JSON Lines."""
    write_text(path, "".join(map(json_line, values)))


def json_line(value: Any) -> str:
    """Returns one line of JSON with its newline."""
    return json.dumps(plain(value), ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """Converts a value to JSON's types: arrays to lists or numbers, non-finite numbers to null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and JAX, scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


class Journal:
    """A file of JSON lines that grows; all rows of a call are on disk before `append` returns.

    An incomplete last line, which a killed process leaves, is truncated.

    Attributes:
      rows: All rows, oldest first.

    Raises:
      UserError: a line is not a JSON object.
    """

    def __init__(self, path: Path):
        self._path = path
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        lines = enumerate(content[:whole].splitlines(), start=1)
        self.rows = [self._parsed(line, number) for number, line in lines]

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows."""
        lines = list(map(json_line, rows))
        with naming(self._path), self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.rows += map(json.loads, lines)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{self._path}, line {number} is not JSON; remove that line to continue") from error
        if not isinstance(row, dict):
            raise UserError(f"{self._path}, line {number} is not a JSON object; remove that line to continue")
        return row
