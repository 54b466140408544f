"""Builds a command's arguments without running it, with stand-ins for objects that are large, remote or missing.

A factory that gin calls may be marked `replaceable` with the kind of object that it creates: "policy", "mesh",
"collections", "questions", "model" (any other model) or "encoder". While `standing_in` is active, the stand-in of that
kind is called in its place, with the factory's arguments. All other arguments are built as for the command itself.
"""

import contextlib
import contextvars
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import gin

from lcrag.composition.configuration import missing_as_sentence, no_value
from lcrag.composition.used_bindings import mark_used

Kind: TypeAlias = Literal["policy", "mesh", "collections", "questions", "model", "encoder"]
Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class Call:
    """A factory that gin calls.

    Attributes:
      name: Name of the factory in configurations.
      scope: The scope in which it is called, such as "train" or "held_out/musique"; empty: none.
      arguments: Its arguments by name, including defaults.
      missing: Names of parameters that have no value.
      make: Calls the factory itself.
    """

    name: str
    scope: str
    arguments: Mapping[str, Any]
    missing: tuple[str, ...]
    make: Callable[[], Any]

    @property
    def selector(self) -> str:
        """The factory's name with its scope, as in a binding."""
        return f"{self.scope}/{self.name}" if self.scope else self.name


StandIn: TypeAlias = Callable[[Call], Any]
_STAND_INS: contextvars.ContextVar[Mapping[Kind, StandIn]] = contextvars.ContextVar("stand_ins")


@contextlib.contextmanager
def standing_in(stand_ins: Mapping[Kind, StandIn]) -> Iterator[None]:
    """Calls these stand-ins in place of the factories of their kinds within the block."""
    token = _STAND_INS.set(stand_ins)
    try:
        yield
    finally:
        _STAND_INS.reset(token)


def replaceable(kind: Kind, name: str | None = None) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Returns a decorator that lets a stand-in be called in place of a factory (a function or a class).

    Args:
      kind: Kind of object that the factory creates.
      name: The factory's name in configurations; None: its Python name.
    """

    def marked(factory: Callable[..., Made]) -> Callable[..., Made]:
        signature = inspect.signature(factory)

        def made(*given: Any, **named: Any) -> Made:
            stand_in = _STAND_INS.get({}).get(kind)
            if stand_in is None:
                return factory(*given, **named)
            bound = signature.bind_partial(*given, **named)
            bound.apply_defaults()
            empty = (each.name for each in signature.parameters.values() if each.default is each.empty)
            missing = tuple(parameter for parameter in empty if parameter not in bound.arguments)
            make = functools.partial(factory, *given, **named)
            call = Call(name or factory.__name__, gin.current_scope_str(), bound.arguments, missing, make)
            return stand_in(call)

        made.__name__ = made.__qualname__ = factory.__name__
        made.__doc__, made.__module__ = factory.__doc__, factory.__module__
        made.__signature__ = signature  # type: ignore[attr-defined]
        annotated = (each for each in signature.parameters.values() if each.annotation is not each.empty)
        made.__annotations__ = {each.name: each.annotation for each in annotated}
        return made

    return marked


@dataclasses.dataclass(frozen=True)
class Composition:
    """A command and the arguments with which it would be called.

    Attributes:
      command: Name of the command.
      arguments: Its keyword arguments by name, including defaults.
    """

    command: str
    arguments: Mapping[str, Any]


def composed(command: str, stand_ins: Mapping[Kind, StandIn]) -> Composition:
    """Builds the arguments that gin's configuration gives a command.

    Args:
      command: A configured command: "train", "sft", "evaluate", "sample", ...
      stand_ins: Functions called in place of the factories of each kind; {}: everything is built.

    Raises:
      UserError: the command itself would reject the configuration before it starts.
    """
    with standing_in(stand_ins), missing_as_sentence():
        bound = gin.get_bindings(command)
    mark_used(command)
    return Composition(command, settings(gin.get_configurable(command), bound, command) | bound)


def settings(function: Callable[..., Any], bound: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the defaults of a function's keyword-only parameters.

    Raises:
      UserError: a parameter has neither a default nor a bound value.
    """
    own = [each for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    defaults = {each.name: each.default for each in own if each.default is not each.empty}
    if missing := [each.name for each in own if each.name not in (defaults | bound)]:
        raise no_value(name, missing)
    return defaults


def bound_settings(name: str, stand_ins: Mapping[Kind, StandIn]) -> dict[str, Any]:
    """Builds the bound arguments, without defaults, of a configurable such as "Runner" that a command creates later."""
    with standing_in(stand_ins), missing_as_sentence():
        bound = gin.get_bindings(name)
    mark_used(name)
    return bound


def bound_value(name: str, parameter: str, stand_ins: Mapping[Kind, StandIn]) -> Any:
    """Builds the value that gin binds for one parameter of a configurable; None if it is not bound."""
    bound = gin.get_bindings(name, resolve_references=False)
    mark_used(name, parameter)
    with standing_in(stand_ins), missing_as_sentence():
        return copy.deepcopy(bound.get(parameter))  # copying a reference makes gin evaluate it
