"""The JSON files of a model folder, each read with one clear sentence when it cannot be."""

import json
import pathlib
from typing import Any

from lcrag.errors import UserError


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
      UserError: the file cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): copy the file again") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): copy or write the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object: copy or write the file again")
    return value


def read_optional_json(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object that a file holds, or an empty one if there is no such file."""
    return read_json_object(path) if path.is_file() else {}


def write_json_object(path: pathlib.Path, value: dict[str, Any]) -> None:
    """Writes an object, indented for people."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
