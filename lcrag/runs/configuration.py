"""Reads and compares the operative configurations that runs have written."""

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from lcrag.composition.gin_files import Binding, Reference, followed, read_bindings


def _values(config: str, place: str, of_reference: Callable[[Reference], Any] = lambda value: value) -> dict[str, Any]:
    """`scope/Name.parameter` -> value of every binding, macros replaced by their values and lists by tuples."""
    bindings = [each for each in read_bindings([config], place) if isinstance(each, Binding)]
    macros = {binding.key: binding.value for binding in bindings if not binding.parameter}

    def resolved(value: Any) -> Any:
        match value := followed(value, macros):
            case Reference():
                return of_reference(value)
            case dict():
                return {resolved(key): resolved(item) for key, item in value.items()}
            case list() | tuple():
                return tuple(map(resolved, value))
        return value

    return {binding.key: resolved(binding.value) for binding in bindings if binding.parameter}


@functools.lru_cache(maxsize=256)
def read_values(config: str, place: str = "config.gin") -> Mapping[str, Any]:
    """Reads every binding of an operative configuration: `scope/Name.parameter` -> value.

    A reference to a configurable is returned as its name with spaces ("native collection").

    Raises:
      UserError: a statement cannot be read; `place` is for the message.
    """
    return _values(config, place, lambda reference: reference.name.rpartition("/")[2].replace("_", " "))


def read_configured(path: Path) -> Mapping[str, Any]:
    """Reads every binding of a `config.gin` as `read_values` does."""
    return read_values(path.read_text(encoding="utf-8"), str(path))


def statements(config: str) -> dict[str, str]:
    """Returns every statement of an operative configuration: name -> value, both as gin writes them."""
    bindings = [each for each in read_bindings([config], "config.gin") if isinstance(each, Binding)]
    return {binding.key: repr(binding.value) for binding in bindings}


def differences(there: str, here: str, may_change: Collection[str] = (), only_shared: bool = False) -> str | None:
    """Return a clause that names all bindings in which two configurations differ; None if there are none.

    Args:
      there: Operative configuration of the run in the folder.
      here: Operative configuration of the run that wants to continue.
      may_change: Bindings that a continued run may change, e.g. `train.steps`.
      only_shared: Compares only bindings that both set, for configurations of different commands.
    """
    old, new = ({key: repr(value) for key, value in _values(config, "config.gin").items()} for config in (there, here))
    compared = sorted(set(old.keys() & new.keys() if only_shared else old.keys() | new.keys()).difference(may_change))
    differing = (key for key in compared if old.get(key) != new.get(key))
    clauses = (f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here" for key in differing)
    return ", ".join(clauses) or None


def configures(command: str, config: str) -> bool:
    """Return whether an operative configuration is one of a command: "train", "sft", ..."""
    return any(key.startswith(f"{command}.") for key in _values(config, "config.gin"))
