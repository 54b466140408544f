"""What gin files say, as plain values."""

import functools
import re
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

from lcrag.config import packaged_folder
from lcrag.runs.folder import Macro, parse_statements


def expanded(name: str) -> str:
    """Returns the text of a packaged file with the files that it includes."""
    text = (packaged_folder() / name).read_text(encoding="utf-8")
    return re.sub(r"^include '(.*)'", lambda found: expanded(found[1]), text, flags=re.MULTILINE)


@functools.cache
def statements_of(name: str) -> dict[str, Any]:
    """Returns every statement of a packaged file and of those that it includes."""
    return parse_statements(expanded(name))


def bound(*gin_files: str, bindings: Sequence[str] = ()) -> dict[str, Any]:
    """Returns every statement of files and bindings, later ones instead of earlier ones; macros stay macros."""
    return dict(ChainMap(parse_statements("\n".join(bindings)), *map(statements_of, reversed(gin_files))))


def values(*gin_files: str, bindings: Sequence[str] = ()) -> dict[str, Any]:
    """Does the same, with the values of macros."""
    found = bound(*gin_files, bindings=bindings)

    def of(value):
        return of(found[value]) if isinstance(value, Macro) and value in found else value

    return {key: of(value) for key, value in found.items()}
