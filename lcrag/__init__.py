"""lcrag trains language models to search.

verifiers finds its taskset here: `vf-eval lcrag`; see `lcrag.app.environments.verifiers_tasks`.
"""

from typing import Any

__all__ = ["QuestionTaskset"]


def __getattr__(name: str) -> Any:
    """Imports the taskset at first use, because verifiers is an optional dependency."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lcrag.app.environments.verifiers_tasks import QuestionTaskset

    return QuestionTaskset
