"""Decides whether a configuration is that of the run a folder already holds."""

from collections.abc import Collection

from lcrag.cli.gin_files import Binding, read_bindings


def configured_values(config: str) -> dict[str, str]:
    """Every binding of an operative configuration's text, as written."""
    statements = read_bindings([config], "config.gin")
    return {
        statement.key: repr(statement.value) if isinstance(statement.value, str) else str(statement.value)
        for statement in statements
        if isinstance(statement, Binding)
    }


def first_difference(there: str, here: str, may_change: Collection[str] = ()) -> str | None:
    """A clause that names the first binding in which two configurations differ, None if they are one run's.

    Args:
      there: Operative configuration of the run in the folder.
      here: Operative configuration of the run that wants to continue.
      may_change: Bindings that a continued run may change, e.g. `train.steps`.
    """
    old, new = configured_values(there), configured_values(here)
    for key in sorted(old.keys() | new.keys()):
        if key not in may_change and old.get(key) != new.get(key):
            return f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here"
    return None
