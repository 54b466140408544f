"""lcrag trains language models to search.

What a method of one's own needs is here; the names are imported at first use, because `lcrag --help` needs none.
"""

import importlib
from typing import Any

_HOMES = {
    "lcrag.data.questions": ("Question",),
    "lcrag.episodes": (
        *("Complete", "Generate", "Observe", "Outcome", "Retrieve", "Translate"),
        *("Program", "Runner", "answer_in", "information", "parse_action"),
    ),
    "lcrag.rewards": ("Episodes", "Reward", "Term", "TermSum", "answer_term", "c3_recall", "exact_match"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
