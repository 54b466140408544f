"""Where in a JSON text a value begins: its line, and the places of a list's elements."""

import json
import re
from collections.abc import Iterator, Sequence

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


def elements_in_json(text: str, place: Sequence[str | int] = ()) -> Iterator[tuple[int, int]]:
    """(where it begins, where it ends) of each element of a list.

    Args:
      text: A JSON text.
      place: Keys and indices from the root to the list.

    Raises:
      json.JSONDecodeError: an element is no JSON, or the list does not end.
      LookupError: there is no list at the place.
    """
    offset = _skip(text, 0)
    for part in place:
        if text[offset : offset + 1] != ("{" if isinstance(part, str) else "["):
            raise LookupError(part)
        offset = _offset_of(text, offset, part)
    if text[offset : offset + 1] != "[":
        raise LookupError(*place)
    offset = _skip(text, offset + 1)
    while text[offset : offset + 1] != "]":
        end = _DECODER.raw_decode(text, offset)[1]
        yield offset, end
        offset = _skip(text, end)


def _offset_of(text: str, start: int, part: str | int) -> int:
    """Where the value of a key or an index begins, in the object or array that begins at `start`."""
    offset, name = _skip(text, start + 1), 0
    while True:
        if text[offset : offset + 1] in ("}", "]"):
            raise LookupError(part)
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
