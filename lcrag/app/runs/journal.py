"""A file of JSON lines that a run grows and an interrupted run continues: what is on disk is never done again."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lcrag.app.runs.atomic import json_line
from lcrag.errors import UserError


class Journal:
    """The rows of a file, and more of them; all of a call are on disk before `append` returns.

    The part of a line that a killed process left at the end is taken off.

    Attributes:
      rows: All of them, oldest first.

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
        """Adds rows at the end."""
        lines = [json_line(row) for row in rows]
        with self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.rows += map(json.loads, lines)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{self._path}, line {number} is no JSON; remove that line to go on") from error
        if not isinstance(row, dict):
            raise UserError(f"{self._path}, line {number} is no JSON object; remove that line to go on")
        return row
