"""Decides whether a configuration is that of the run a folder already holds."""

from collections.abc import Collection, Mapping
from typing import Any

from lcrag.app.composition.gin_files import Binding, Macro, read_bindings


def configured_values(config: str) -> dict[str, str]:
    """Every binding of an operative configuration's text, macros replaced by what they stand for."""
    bindings = [each for each in read_bindings([config], "config.gin") if isinstance(each, Binding)]
    macros = {binding.key: binding.value for binding in bindings if not binding.parameter}
    return {binding.key: _text(binding.value, macros) for binding in bindings if binding.parameter}


def _text(value: Any, macros: Mapping[str, Any]) -> str:
    if isinstance(value, Macro) and value.name in macros:
        return _text(macros[value.name], macros)
    if isinstance(value, dict):
        return str({_text(key, macros): _text(item, macros) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return str([_text(item, macros) for item in value])
    return repr(value) if isinstance(value, str) else str(value)


def first_difference(there: str, here: str, may_change: Collection[str] = (), only_shared: bool = False) -> str | None:
    """A clause that names the first binding in which two configurations differ, None if they are one run's.

    Args:
      there: Operative configuration of the run in the folder.
      here: Operative configuration of the run that wants to continue.
      may_change: Bindings that a continued run may change, e.g. `train.steps`.
      only_shared: Compare only what both set, as where they are of different commands.
    """
    old, new = configured_values(there), configured_values(here)
    for key in sorted(old.keys() & new.keys() if only_shared else old.keys() | new.keys()):
        if key not in may_change and old.get(key) != new.get(key):
            return f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here"
    return None
