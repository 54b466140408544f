"""Says whether a value written in gin fits the annotation of the parameter it is bound to.

gin itself checks no types: a wrong one would surface deep inside a run.
"""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union

from lcrag.app.cli.gin_files import Macro, Reference

SEQUENCES = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def fits(value: Any, annotation: Any) -> bool:
    """Whether `value` may be given for `annotation`; what cannot be judged beforehand fits."""
    if isinstance(value, Reference | Macro) or annotation in (Any, inspect.Parameter.empty):
        return True
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if origin in (tuple, list, set, frozenset, *SEQUENCES):
        return _fits_sequence(value, origin, arguments)
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, dict) and all(fits(item, arguments[-1]) for item in value.values())
    if origin is None and isinstance(annotation, type):
        return _fits_class(value, annotation)
    return annotation is not None or value is None


def _fits_sequence(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, (list, tuple) if origin in SEQUENCES else origin):
        return False
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(
            fits(item, argument) for item, argument in zip(value, arguments, strict=True)
        )
    return not arguments or all(fits(item, arguments[0]) for item in value)


def _fits_class(value: Any, annotation: type) -> bool:
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if issubclass(annotation, Path):
        return isinstance(value, str | Path)
    if getattr(annotation, "_is_protocol", False):
        return True
    return isinstance(value, annotation)


def annotations_of(configurable: Callable[..., Any]) -> dict[str, Any]:
    """Annotation of every parameter of a function or of a class's constructor, as far as they can be resolved."""
    function = configurable.__init__ if inspect.isclass(configurable) else configurable
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):  # an annotation that exists for type checkers only
        return {}


def described(annotation: Any) -> str:
    """An annotation in words a person who writes gin knows."""
    return annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)
