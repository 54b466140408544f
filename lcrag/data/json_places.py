"""On which line of a JSON text a value begins."""

import json
import re
from collections.abc import Sequence

_BETWEEN = re.compile(r"[\s,:]*")
_DECODER = json.JSONDecoder()


def line_in_json(text: str, place: Sequence[str | int]) -> int:
    """The line, from 1, on which a value begins.

    Args:
      text: A JSON text.
      place: Keys and indices from the root to the value, all of them there.
    """
    offset = _skip(text, 0)
    for part in place:
        offset = _offset_of(text, offset, part)
    return text.count("\n", 0, offset) + 1


def _offset_of(text: str, start: int, part: str | int) -> int:
    """Where the value of a key or an index begins, in the object or array that begins at `start`."""
    offset, name = _skip(text, start + 1), 0
    while True:
        key: str | int = name
        if isinstance(part, str):
            key, end = _DECODER.raw_decode(text, offset)
            offset = _skip(text, end)
        if key == part:
            return offset
        offset = _skip(text, _DECODER.raw_decode(text, offset)[1])
        name += 1


def _skip(text: str, offset: int) -> int:
    between = _BETWEEN.match(text, offset)
    return between.end() if between else offset
