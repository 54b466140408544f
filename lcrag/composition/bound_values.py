"""Looks up the value of a parameter in gin's configuration by the name that bindings use for it."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import gin

from lcrag.composition.gin_files import Binding, Reference, followed, read_bindings
from lcrag.errors import UserError


class BoundValues:
    """The bindings of the current configuration as plain data: references are kept, macros are resolved."""

    def __init__(self) -> None:
        statements = [each for each in read_bindings([gin.config_str()]) if isinstance(each, Binding)]
        self._macros = {each.key: each.value for each in statements if not each.parameter}
        self._bound = {
            (each.scope, each.selector.rsplit(".", 1)[-1], each.parameter): each.value
            for each in statements
            if each.parameter
        }

    def value(self, name: str) -> Any:
        """Returns the value of a parameter such as "r_search.passages" or "critic/adamw.learning_rate", or of a macro.

        A binding of an outer scope also applies in inner scopes. An unbound parameter has its default.

        Raises:
          UserError: there is no such parameter, or it has no value.
        """
        if name in self._macros:
            return self._resolved(self._macros[name])
        address, _, parameter = name.rpartition(".")
        *scopes, selector = address.split("/")
        for scope in _inner_to_outer(scopes):
            if (scope, selector, parameter) in self._bound:
                return self._resolved(self._bound[scope, selector, parameter])
        return _default(selector, parameter)

    def settings(self, reference: Reference) -> dict[str, Any]:
        """Returns the value of every parameter of a referenced function or class; None for parameters without one."""
        values = {}
        for parameter in _parameters(reference.name.rsplit("/", 1)[-1]):
            try:
                values[parameter] = self.value(f"{reference.name}.{parameter}")
            except UserError:
                values[parameter] = None
        return values

    def _resolved(self, value: Any) -> Any:
        value = followed(value, self._macros)
        if isinstance(value, dict):
            return {name: self._resolved(each) for name, each in value.items()}
        return type(value)(map(self._resolved, value)) if isinstance(value, list | tuple) else value


def _inner_to_outer(scopes: list[str]) -> Iterator[str]:
    for length in range(len(scopes), -1, -1):
        yield "/".join(scopes[:length])


def _parameters(selector: str) -> dict[str, inspect.Parameter]:
    """Returns the parameters of the function that a selector names, or of the constructor of the class."""
    try:
        found = gin.get_configurable(selector)
    except ValueError as error:
        raise UserError(f"nothing configurable is called {selector}") from error
    known = dict(inspect.signature(found.__init__ if inspect.isclass(found) else found).parameters)
    known.pop("self", None)
    for field in dataclasses.fields(found) if dataclasses.is_dataclass(found) else ():
        if field.init and field.default_factory is not dataclasses.MISSING:
            known[field.name] = known[field.name].replace(default=field.default_factory())
    return known


def _default(selector: str, parameter: str) -> Any:
    known = _parameters(selector)
    if parameter not in known:
        raise UserError(f"{selector} has no parameter {parameter}")
    if known[parameter].default is not inspect.Parameter.empty:
        return known[parameter].default
    raise UserError(f"{selector}.{parameter} has no value")
