"""Ranges of numbers, declared as annotations: `learning_rate: Positive`.

gin bindings are checked against them before anything is built by gin, calls from Python by
`limited` and `check_fields`. A number that is not finite is outside every range.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, Union

from lcrag.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])
LARGEST_INT = 2**31 - 1  # of int32, the integer type on devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Within:
    """A range of numbers.

    Attributes:
      least, most: Inclusive ends.
      above, below: Exclusive ends.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, number: Any) -> bool:
        """Whether a number is in the range and finite."""
        inside = self.least <= number <= self.most and self.above < number < self.below
        return bool(inside and abs(number) < math.inf)

    def __str__(self) -> str:
        if math.isfinite(self.least) and math.isfinite(self.most):
            return f"from {self.least:.12g} to {self.most:.12g}"
        least, above = (self.least, "{:.12g} or more"), (self.above, "above {:.12g}")
        most, below = (self.most, "at most {:.12g}"), (self.below, "below {:.12g}")
        ends = [text.format(end) for end, text in (least, above, most, below) if math.isfinite(end)]
        return " and ".join(ends) or "a finite number"


FINITE = Within()

Amount: TypeAlias = Annotated[int, Within(least=0), Within(most=LARGEST_INT)]
Count: TypeAlias = Annotated[int, Within(least=1), Within(most=LARGEST_INT)]
Passages: TypeAlias = Annotated[int, Within(least=1, most=1000)]  # of a search
Port: TypeAlias = Annotated[int, Within(least=0, most=65535)]
Seed: TypeAlias = Annotated[int, Within(least=0, most=2**32 - 1)]
NonNegative: TypeAlias = Annotated[float, Within(least=0)]
Positive: TypeAlias = Annotated[float, Within(above=0)]
PositiveShare: TypeAlias = Annotated[float, Within(above=0, most=1)]
Share: TypeAlias = Annotated[float, Within(least=0, most=1)]
InnerShare: TypeAlias = Annotated[float, Within(above=0, below=1)]
Decay: TypeAlias = Annotated[float, Within(least=0, below=1)]


def check(name: str, value: Any, annotation: Any) -> None:
    """Checks the numbers in a value against the ranges in an annotation.

    Raises:
      UserError: a number is outside its range; the message begins with `name`.
    """
    for number, limit in _numbers(value, annotation):
        if not limit.holds(number):
            shown = limit if abs(number) < math.inf else FINITE
            raise UserError(f"{name} must be {shown}, but {number} is not")


def check_fields(record: Any) -> None:
    """Checks the fields of a dataclass; see `check`."""
    kind: Callable[..., Any] = type(record)
    for name, annotation in _hints(kind).items():
        check(f"{kind.__name__}.{name}", getattr(record, name, None), annotation)


def limited(function: Function) -> Function:
    """Makes a function check its arguments at every call; see `check`."""
    signature = inspect.signature(function)
    name_of_call = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check(f"{name_of_call}.{name}", value, _hints(function).get(name))
        return function(*args, **kwargs)

    return typing.cast(Function, checked)


@functools.cache
def _hints(annotated: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(annotated, include_extras=True)


def _numbers(value: Any, annotation: Any) -> Iterator[tuple[Any, Within]]:
    """Yields every number in a value with the range of its annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            yield from ((value, each) for each in arguments[1:] if isinstance(each, Within))
        else:
            yield from _numbers(value, arguments[0])
    elif origin in (Union, types.UnionType):
        for option in arguments:
            yield from _numbers(value, option)
    elif origin in (dict, collections.abc.Mapping) and isinstance(value, Mapping):
        for item in value.values():
            yield from _numbers(item, arguments[-1])
    elif inspect.isclass(origin) and issubclass(origin, collections.abc.Collection) and isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, arguments[0])
    elif annotation is float and isinstance(value, numbers.Real):
        yield value, FINITE
