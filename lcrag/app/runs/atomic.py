"""Writing a file so that a reader sees the old content or the new one, never a part."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replaces `path` with `text`; after a crash it holds what it held before."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` with `value`, indented for people."""
    write_text(path, json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Replaces `path` with one JSON object a line."""
    write_text(path, "".join(json_line(value) for value in values))


def json_line(value: Any) -> str:
    """One line of JSON, its newline included."""
    return json.dumps(plain(value), ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """The value in JSON's own types: arrays become lists or numbers, what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and JAX, scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
