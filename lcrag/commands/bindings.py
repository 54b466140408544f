"""What gin binds, not evaluated: the values of parameters, as JSON and as text."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, TypeGuard

import gin
from gin.config import ConfigurableReference, current_scope

from lcrag.episodes.programs import is_program, program_name, program_settings
from lcrag.runs.display import size_text


def value_of(name: str) -> Any:
    """Returns what gin binds to a parameter such as "critic/adamw.learning_rate" (else its default), or to a macro."""
    address, _, parameter = name.rpartition(".")
    *scopes, selector = (address or f"{name}/macro").split("/")
    with gin.config_scope(scopes):
        value = arguments_of(selector).get(parameter if address else "value")
        return value_of("/".join(value.scopes)) if _is_macro(value) else value


def _is_macro(value: Any) -> TypeGuard[ConfigurableReference]:
    return isinstance(value, ConfigurableReference) and value.selector.rpartition(".")[2] == "macro"


def arguments_of(selector: str) -> dict[str, Any]:
    """Returns the bound values and defaults of a function or class in the current scope; what has neither is absent."""
    made = ConfigurableReference(selector, False).configurable.wrapped
    parameters = inspect.signature(made).parameters
    known = {name: value.default for name, value in parameters.items() if value.default is not value.empty}
    for field in dataclasses.fields(made) if inspect.isclass(made) and dataclasses.is_dataclass(made) else ():
        if field.default_factory is not dataclasses.MISSING and field.name in known:
            known[field.name] = field.default_factory()
    return known | gin.get_bindings(selector, resolve_references=False)


def plain(value: Any, depth: int = 0) -> Any:
    """Returns a value that JSON can hold: functions, objects and references by their names, macros by their values.

    References are followed `depth` references deep, and replaced by names and settings.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(item, depth) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth) for item in value]
    if _is_macro(value):
        return plain(value_of("/".join(value.scopes)), depth)
    if isinstance(value, ConfigurableReference):
        if not value.evaluate or not depth:
            return str(value)
        with gin.config_scope(value.scopes or current_scope()):
            return {value.scoped_selector: plain(arguments_of(value.selector), depth - 1)}
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        settings = program_settings(value) if is_program(value) else {}
        return {program_name(value): plain(settings)} if settings else program_name(value)
    return value if isinstance(value, str | int | float | None) else getattr(value, "name", type(value).__name__)


def shown(value: Any, inner: bool = False, name: str = "") -> str:
    """Returns a value as text: 1e-06 as 1e-6, 1005 as 1,005, settings without empty ones, inner ones in brackets.

    Of a list, settings and sentences have a line each. Numbers below a `name` that ends with "_bytes" are sizes.
    """
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        number = f"{value:,}" if isinstance(value, int) else f"{value:g}".replace("e-0", "e-")
        return size_text(value) if name.endswith("_bytes") else number
    if isinstance(value, list | tuple):
        long = any(isinstance(item, Mapping) or " " in str(item) for item in value)
        return ("\n" if long and not inner else ", ").join(shown(item, inner) for item in value)
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if item not in (None, "", [], {})}
        texts = [
            f"{key.replace('_', ' ')} {shown(item, True, name if name.endswith('_bytes') else key)}"
            for key, item in known.items()
        ]
        return f"({', '.join(texts)})" if inner else ", ".join(texts)
    return str(value)
