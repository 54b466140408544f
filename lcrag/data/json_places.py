"""On which line of a JSON text a value begins."""

import functools
import json
from collections.abc import Sequence
from json import decoder, scanner
from typing import Any


def line_in_json(text: str, place: Sequence[str | int]) -> int:
    """The line, from 1, of the innermost object on the way to a value.

    Args:
      text: A JSON text.
      place: Keys and indices from the root to the value.
    """
    value, offset = _decoded(text), 0
    for part in (*place, None):
        offset = value.offset if isinstance(value, _Located) else offset
        if part is not None:
            value = value[part]
    return text.count("\n", 0, offset) + 1


class _Located(dict):
    """An object that knows where in the text it begins."""

    offset: int = 0


class _Decoder(json.JSONDecoder):
    """Python's own decoder, slower than the compiled one, with the offset of every object."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = self._located
        self.scan_once = scanner.py_make_scanner(self)

    def _located(self, text_and_start: tuple[str, int], *arguments: Any) -> tuple[_Located, int]:
        found, end = decoder.JSONObject(text_and_start, *arguments)
        located = _Located(found)
        located.offset = text_and_start[1] - 1  # behind the brace
        return located, end


@functools.lru_cache(maxsize=1)
def _decoded(text: str) -> Any:
    return _Decoder().decode(text)
