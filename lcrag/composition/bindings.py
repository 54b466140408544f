"""Checks bindings against the registered functions and classes, and reports the first mistake in one sentence.

gin itself checks no types: without these checks a wrong value would fail somewhere inside a run.
"""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import gin
from beartype.door import is_bearable
from beartype.roar import BeartypeException
from gin import config as gin_config

from lcrag.cli.arguments import check_no_secret, closest
from lcrag.composition.gin_files import Binding, Macro, Reference, followed
from lcrag.errors import UserError
from lcrag.limits import check

PLAIN = (int, float, str, bool, types.NoneType, Path)
SEQUENCES = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def check_bindings(bindings: Sequence[Binding]) -> None:
    """Checks the name, parameter, scope, references and type of every binding.

    Args:
      bindings: In the order in which they take effect.

    Raises:
      UserError: a binding is wrong; the text names its file and line, or the flag.
    """
    macros = {binding.key: binding.value for binding in bindings if not binding.parameter}
    parts = [part for binding in bindings for part in _parts(binding.value)]
    # gin calls the value of a macro in a scope with the macro's name, which operative configurations show.
    scopes = {scope for part in parts if isinstance(part, Reference) for scope in part.name.split("/")[:-1]} | {*macros}
    used_macros = {part.name for part in parts if isinstance(part, Macro)}
    for binding in bindings:
        check_no_secret(f"{binding.place}: {binding.key}", repr(binding.value))
        _check_references(binding, macros)
        if binding.parameter:
            _check_scope(binding, scopes)
            _check_parameter(binding, macros)
        elif binding.key not in used_macros:
            hint = closest(binding.key, used_macros) or "; a parameter is written Name.parameter"
            raise UserError(f"{binding.place}: {binding.key} is set, but no binding uses %{binding.key}{hint}")
    _check_files_apart(bindings)


def _check_files_apart(bindings: Sequence[Binding]) -> None:
    """Raises a UserError if a file of questions is bound both for training and as held out."""
    bound = {
        each.key: each
        for each in bindings
        if each.selector.endswith("jsonl_questions")
        and each.parameter == "files"
        and isinstance(each.value, list | tuple)
    }
    trained = {path: each for each in bound.values() if each.scope.split("/")[0] == "train" for path in _paths(each)}
    for binding in bound.values():
        both = (
            [path for path in _paths(binding) if path in trained] if binding.scope.split("/")[0] == "held_out" else []
        )
        if both:
            raise UserError(
                f"{binding.place}: {binding.key} names {both[0].name}, but so does {trained[both[0]].key}: hold out"
                " questions that are not trained on"
            )


def _paths(binding: Binding) -> list[Path]:
    return [Path(file).resolve() for file in binding.value if isinstance(file, str)]


def _parts(value: Any) -> Iterator[Any]:
    """Yields a value and, if it is a container, all values in it, at any depth."""
    yield value
    children = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if isinstance(children, list | tuple):
        for child in children:
            yield from _parts(child)


def _configurable(selector: str, place: str) -> Callable[..., Any]:
    """Returns the function or class that a selector names."""
    try:
        return gin.get_configurable(selector)
    except ValueError:
        names = [name.rsplit(".", 1)[-1] for name, _ in gin_config._REGISTRY.items() if not name.startswith("gin.")]
        raise UserError(f"{place}: nothing configurable is called {selector}{closest(selector, names)}") from None
    except KeyError as error:
        raise UserError(f"{place}: {selector} is ambiguous, write it in full: {error}") from None


def _check_references(binding: Binding, macros: Mapping[str, Any]) -> None:
    for part in _parts(binding.value):
        if isinstance(part, Reference):
            _configurable(part.name.split("/")[-1], f"{binding.place}, {binding.key}")
        elif isinstance(part, Macro) and part.name not in macros and not _is_constant(part):
            hint = closest(part.name, macros)
            raise UserError(f"{binding.place}: {binding.key} uses {part}, which nothing sets{hint}")


def _is_constant(macro: Macro) -> bool:
    return getattr(gin_config.parse_value(str(macro)), "selector", "gin.macro") != "gin.macro"


def _check_scope(binding: Binding, known: set[str]) -> None:
    for scope in filter(None, binding.scope.split("/")):
        if scope not in known:
            hint = closest(scope, known)
            raise UserError(f"{binding.place}: nothing enters the scope {scope} of {binding.key}{hint}")


def _check_parameter(binding: Binding, macros: Mapping[str, Any]) -> None:
    found = _configurable(binding.selector, binding.place)
    function = found.__init__ if inspect.isclass(found) else found
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if binding.parameter not in parameters and not open_ended:
        hint = closest(binding.parameter, parameters) or f"; it has {', '.join(parameters) or 'none'}"
        raise UserError(f"{binding.place}: {binding.selector} has no parameter {binding.parameter}{hint}")
    value = followed(binding.value, macros)
    annotation = _annotations(function).get(binding.parameter, Any)
    by_macro = f" = {binding.value}" if isinstance(binding.value, Macro) else ""
    check_value(f"{binding.place}: {binding.key}{by_macro}", value, annotation)


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Checks the type and the limits of a value.

    Raises:
      UserError: the value does not fit the annotation; the text begins with `name`.
    """
    if not fits(value, annotation):
        raise UserError(f"{name} must be {_described(annotation)}, but {value!r} is not")
    check(name, value, annotation)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError):  # an annotation that exists for type checkers only
        return {}


def _described(annotation: Any) -> str:
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return f"{parts[0].__name__}, {parts[1]}"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_described, parts))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (dict, collections.abc.Mapping):
        return f"a dict of {_described(parts[-1])}"
    if origin in (tuple, list, *SEQUENCES) and parts[1:] in ((), (...,)):
        return f"a list or tuple of {_described(parts[0])}"
    if annotation is type(None):
        return "None"
    return annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)


def fits(value: Any, annotation: Any) -> bool:
    """Returns whether a value has the type of an annotation; `check` tests the annotation's limits.

    A macro and an evaluated reference fit every annotation, because their value is not known yet. A reference to a
    function does not fit plain types such as int. The items of containers are checked here, one by one, because
    beartype checks only one random item of each container.
    """
    if isinstance(value, Macro) or (isinstance(value, Reference) and value.evaluated):
        return True
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, dict) and all(fits(item, arguments[-1]) for item in value.values())
    if origin in (tuple, list, set, frozenset, *SEQUENCES):
        return _fits_sequence(value, origin, arguments)
    if origin is not None and origin is not Literal:
        return True  # Callable[...] and other generics, whose values are references
    if isinstance(value, Reference):
        return annotation not in PLAIN
    if isinstance(value, bool) and annotation in (int, float):
        return False
    return _fits_plain(value, annotation)


def _fits_sequence(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, (list, tuple) if origin in SEQUENCES else origin):
        return False
    if origin is tuple and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    return all(fits(item, arguments[0]) for item in value)


def _fits_plain(value: Any, annotation: Any) -> bool:
    """Returns whether a value without references fits a class, a literal or None."""
    if inspect.isclass(annotation) and issubclass(annotation, Path):
        annotation |= str
    try:
        return bool(is_bearable(value, float | int if annotation is float else annotation))  # type: ignore[arg-type]
    except BeartypeException:  # a protocol that cannot be checked at run time
        return True
