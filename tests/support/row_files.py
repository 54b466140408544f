"""Files of rows for tests."""

import bz2
import gzip
import json
import pathlib
from typing import Any


def write_rows(path: pathlib.Path, *rows: Any) -> pathlib.Path:
    """Writes rows, a line each: texts, bytes, or else JSON; packed as the file's name says. Returns its path."""
    lines = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    content = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(content))
    return path
