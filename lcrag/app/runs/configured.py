"""Reads values back from the operative configuration that a run has written."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lcrag.app.composition.gin_files import Binding, Macro, Reference, read_bindings


@functools.lru_cache(maxsize=256)
def read_configured(path: Path) -> Mapping[str, Any]:
    """Every binding of a `config.gin`, `scope/Name.parameter` -> its value, macros replaced by what they stand for.

    A reference to something configurable is read as its name with the words apart ("native collection").

    Raises:
      UserError: a statement cannot be read.
    """
    statements = read_bindings([path.read_text(encoding="utf-8")], str(path))
    bindings = [each for each in statements if isinstance(each, Binding)]
    macros = {binding.key: binding.value for binding in bindings if not binding.parameter}
    return {binding.key: _resolved(binding.value, macros) for binding in bindings if binding.parameter}


def _resolved(value: Any, macros: Mapping[str, Any]) -> Any:
    if isinstance(value, Macro) and value.name in macros:
        return _resolved(macros[value.name], macros)
    if isinstance(value, Reference):
        return value.name.rpartition("/")[2].replace("_", " ")
    if isinstance(value, dict):
        return {key: _resolved(item, macros) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_resolved(item, macros) for item in value)
    return value
