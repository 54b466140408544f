"""lcrag trains language models to search.

What a method of one's own needs is here; the names are imported at first use, because `lcrag --help` needs none.
"""

import importlib
from typing import Any

_HOMES = {
    "Question": "lcrag.data.questions",
    "Generate": "lcrag.episodes",
    "Observe": "lcrag.episodes",
    "Outcome": "lcrag.episodes",
    "Retrieve": "lcrag.episodes",
    "Runner": "lcrag.episodes",
    "information": "lcrag.episodes",
    "parse_action": "lcrag.episodes",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
