"""Checks bindings against what can be configured: a misspelt one is one clear sentence."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from gin import config as gin_config

from lcrag.app.cli.arguments import closest
from lcrag.app.cli.gin_files import Binding, Macro, Reference
from lcrag.app.cli.value_types import annotations_of, described, fits
from lcrag.errors import UserError

BUILT_IN = ("gin.macro", "gin.constant", "gin.singleton")


def check_bindings(bindings: Sequence[Binding], scopes: Sequence[str] = ()) -> None:
    """Checks every binding: its name, its parameter, its scope, what it refers to and its type.

    Args:
      bindings: In the order in which they take effect.
      scopes: Scopes that the experiment's code enters by itself.

    Raises:
      UserError: The first binding that cannot mean anything.
    """
    macros = {binding.key: binding.value for binding in bindings if not binding.parameter}
    parts = [part for binding in bindings for part in _parts(binding.value)]
    known_scopes = {scope for part in parts if isinstance(part, Reference) for scope in part.name.split("/")[:-1]}
    used_macros = {part.name for part in parts if isinstance(part, Macro)}
    for binding in bindings:
        _check_references(binding, macros)
        if not binding.parameter:
            _check_use_of_macro(binding, used_macros)
        else:
            _check_scope(binding, known_scopes | set(scopes))
            _check_parameter(binding, macros)


def _parts(value: Any) -> Iterator[Any]:
    """A value and, if it is a container, everything in it."""
    yield value
    children: Sequence[Any] = ()
    if isinstance(value, dict):
        children = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        children = value
    for child in children:
        yield from _parts(child)


def _configurable_names() -> list[str]:
    return [selector.rsplit(".", 1)[-1] for selector, _ in gin_config._REGISTRY.items() if selector not in BUILT_IN]


def _configurable(selector: str, place: str) -> Any:
    """gin's record of what `selector` names."""
    matches = gin_config._REGISTRY.matching_selectors(selector)
    if not matches:
        hint = closest(selector, _configurable_names())
        raise UserError(f"{place}: nothing configurable is called {selector}{hint}")
    if len(matches) > 1:
        raise UserError(f"{place}: {selector} may mean {' or '.join(sorted(matches))}; write it in full")
    return gin_config._REGISTRY.get_match(selector)


def _check_references(binding: Binding, macros: dict[str, Any]) -> None:
    for part in _parts(binding.value):
        if isinstance(part, Reference):
            _configurable(part.name.split("/")[-1], f"{binding.place}, {binding.key}")
        elif isinstance(part, Macro) and not (
            part.name in macros or gin_config._CONSTANTS.matching_selectors(part.name)
        ):
            hint = closest(part.name, macros)
            raise UserError(f"{binding.place}: {binding.key} uses {part}, which nothing sets{hint}")


def _check_use_of_macro(binding: Binding, used: set[str]) -> None:
    if binding.key not in used:
        hint = closest(binding.key, used) or "; a parameter is written Name.parameter"
        raise UserError(f"{binding.place}: {binding.key} is set, but no binding uses %{binding.key}{hint}")


def _check_scope(binding: Binding, known: set[str]) -> None:
    for scope in filter(None, binding.scope.split("/")):
        if scope not in known:
            hint = closest(scope, known)
            raise UserError(f"{binding.place}: nothing enters the scope {scope} of {binding.key}{hint}")


def _check_parameter(binding: Binding, macros: dict[str, Any]) -> None:
    found = _configurable(binding.selector, binding.place)
    parameters = inspect.signature(found.wrapped).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if binding.parameter not in parameters and not open_ended:
        hint = closest(binding.parameter, parameters) or f"; it has {', '.join(parameters) or 'none'}"
        raise UserError(f"{binding.place}: {binding.selector} has no parameter {binding.parameter}{hint}")
    value = binding.value
    while isinstance(value, Macro) and value.name in macros:
        value = macros[value.name]
    annotation = annotations_of(found.wrapped).get(binding.parameter, inspect.Parameter.empty)
    if not fits(value, annotation):
        raise UserError(f"{binding.place}: {binding.key} must be {described(annotation)}, but {value!r} is not")
