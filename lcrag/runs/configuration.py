"""The configuration of a run: which bindings were used, and how recorded ones differ."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
from gin import config_parser

from lcrag.errors import UserError

_EXPECTED: list[str] = []  # bindings of the command line, which must be used before results are written
_READ: set[tuple[str, str]] = set()  # (configurable, parameter or "") that a command reads without calling it


class Reference(str):
    """A value `@scope/Name` or `@scope/Name()` of a recorded configuration, as it is written."""

    __repr__ = str.__str__


class Macro(str):
    """A value `%NAME` of a recorded configuration, as the macro's name."""


class _PlainValues(config_parser.ParserDelegate):
    """Reads references and macros as plain data: what they name may no longer exist."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        return Reference(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def parse_statements(config: str, place: str = "config.gin") -> dict[str, Any]:
    """Returns every statement of a configuration without includes: `scope/Name.parameter` or macro -> value."""
    statements = {}
    try:
        for statement in config_parser.ConfigParser(config, _PlainValues()):
            if isinstance(statement, config_parser.BindingStatement):
                key = "/".join(filter(None, (statement.scope, statement.selector)))
                statements[f"{key}.{statement.arg_name}" if statement.arg_name else key] = statement.value
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{place} cannot be read: {' '.join(str(error).split())}") from error
    return statements


def _values(config: str, place: str, of_reference: Callable[[Reference], Any] = lambda value: value) -> dict[str, Any]:
    """`scope/Name.parameter` -> value of every binding, macros replaced by their values and lists by tuples."""
    statements = parse_statements(config, place)

    def resolve(value: Any) -> Any:
        if isinstance(value, Macro):
            return resolve(statements[value]) if value in statements else value
        if isinstance(value, Reference):
            return of_reference(value)
        if isinstance(value, dict):
            return {resolve(key): resolve(item) for key, item in value.items()}
        return tuple(map(resolve, value)) if isinstance(value, list | tuple) else value

    return {key: resolve(value) for key, value in statements.items() if "." in key}


@functools.lru_cache(maxsize=256)
def read_values(config: str, place: str = "config.gin") -> Mapping[str, Any]:
    """Reads every binding of an operative configuration: `scope/Name.parameter` -> value.

    A reference to a configurable is returned as its name with spaces ("native collection").
    """
    return _values(config, place, lambda reference: reference.strip("@()").rpartition("/")[2].replace("_", " "))


def read_configured(path: Path) -> Mapping[str, Any]:
    """Reads every binding of a `config.gin` as `read_values` does."""
    return read_values(path.read_text(encoding="utf-8"), str(path))


def statements(config: str) -> dict[str, str]:
    """Returns every statement of an operative configuration: name -> value, both as gin writes them."""

    def written(value: Any) -> str:
        if isinstance(value, Macro):
            return f"%{value}"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{written(key)}: {written(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list | tuple):
            items = ", ".join(map(written, value))
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
        return repr(value)

    return {key: written(value) for key, value in parse_statements(config).items()}


def differences(there: str, here: str, may_change: Collection[str] = (), only_shared: bool = False) -> str | None:
    """Returns a clause that names all bindings in which two configurations differ; None if there are none.

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


def expect_used(bindings: Sequence[str]) -> None:
    """Records statements of the command line, `Name.parameter = value`, for `check_used`."""
    _EXPECTED[:] = bindings
    _READ.clear()


def mark_used(name: str, *parameters: str) -> None:
    """Marks the bindings of a configurable, or of some of its parameters, as used, although gin does not call it."""
    called = name.rpartition("/")[2].rpartition(".")[2]
    _READ.update((called, parameter) for parameter in parameters or ("",))


def check_used() -> None:
    """Checks that everything that the command has built so far has used every binding of the command line."""

    def split(key: str) -> tuple[str, str, str]:
        scope, _, rest = key.rpartition("/")
        selector, _, parameter = rest.rpartition(".")
        return scope, selector.rpartition(".")[2], parameter

    used = {key: split(key) for key in parse_statements(gin.operative_config_str())}
    for key in (key for binding in _EXPECTED for key in parse_statements(binding)):
        scope, name, parameter = split(key)
        same = {other: parts for other, parts in used.items() if parts[2] == parameter}
        # A binding without a scope, or of an outer one, is used by calls in the scopes within it.
        fits = (
            called == name and f"{within}/".startswith(scope and f"{scope}/") for within, called, _ in same.values()
        )
        if not any(fits) and not {(name, ""), (name, parameter)} & _READ:
            hint = f" (used are {', '.join(sorted(same)[:4])})" if same else ""
            raise UserError(
                f"--gin.{key} has no effect: nothing that this command built uses it{hint}; leave it out, or keep"
                " it with --allow_unused"
            )


def operative_config() -> str:
    """Returns the bindings that have been used so far as the text of a gin file; see `check_used`."""
    check_used()
    return gin.operative_config_str()
