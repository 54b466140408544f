"""The exception for a user's mistake, which becomes one line without a traceback."""

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_type_hints

from beartype import BeartypeConf, beartype
from beartype.vale import Is

if TYPE_CHECKING:
    import pydantic

Option = TypeVar("Option")
# What beartype says of an argument: `Function lcrag.train.rl.train() parameter steps=...`.
WRONG_TYPE = re.compile(
    r"(?:Function|Method) [\w.]*?(?P<name>\w+)(?:\.__init__)?\(\) parameter (?P<parameter>\w+)=.* violates type hint"
    r" .*?, as (?P<why>.*)",
    re.DOTALL,
)
# What it says of a value that is out of range, or none of a few texts.
OUT_OF_RANGE = re.compile(
    r"\w+ (?P<value>[^:]*?)(?: |:.*)violates validator [\w.]*Is\[(?P<range>\w+)\]", re.DOTALL | re.I
)
NO_CHOICE = re.compile(r"\w+ (?P<value>'.*?'|\S+) != (?P<choices>[^*]*)\.$")
CLASS = re.compile(r'<(?:class|protocol ABC) "[\w.]*?(\w+)">')  # as beartype writes it
TEXTS = re.compile(r"collections\.abc\.(Sequence|Collection)\[str\b")  # a type hint of several texts
TRAIL = "\n  In call to configurable"  # gin appends the calls that led to an exception
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
# What XLA says without memory; CUDA's libraries, which ask for their own, do not give the reason.
NO_MEMORY = re.compile(
    r"(RESOURCE_EXHAUSTED|INTERNAL|FAILED_PRECONDITION): *(?P<said>[^\n]*?(?:"
    r"out of memory|(?:initialize|create) (?:BLAS|BLASLT|cuBLAS|cuDNN|DNN)\b|DNN library initialization)[^\n\[]*)",
    re.IGNORECASE,
)
EXECUTABLE = re.compile(r"executable_name='(?:jit_)?_?(\w+)'")
LESS_MEMORY = {
    "update": "lower Layout.rows or Layout.row_lengths, of lcrag sft sft/Layout's, or bind Computation.remat = 'full'",
    "sampler": "lower Sampler.slots or Sampler.context",
}
USES_MEMORY = {"step": "update", "append": "sampler", "decode": "sampler", "fork": "sampler"}  # by executable
# Parts of an address: user and password, or a key among its parameters.
SECRET = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://)[^/?#\s'\"]+(?=@)"
    r"|([?&](?:(?:api|access)[_-]?)?(?:key|token|secret|password|signature)=)[^&#\s'\"]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Replaces passwords and keys in the addresses of a text by ***."""
    return SECRET.sub(lambda match: f"{match[1] or match[2]}***", text)


class UserError(Exception):
    """A user's mistake: the message says what is wrong, where, and how to correct it; secrets in addresses are hidden.

    `lcrag` prints it as `lcrag: error: <message>` and exits with status 2.
    """

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class AbsentError(UserError):
    """A file or folder that the user must provide is missing, or not configured."""


class WrongValue(UserError):
    """An argument of what is `typed` has a wrong type or is out of range, as beartype says it, in our words."""

    def __str__(self) -> str:
        return WRONG_TYPE.sub(lambda it: _wrong(f"{it['name']}.{it['parameter']}", it["why"]), super().__str__())


_TYPES = BeartypeConf(is_color=False, is_pep484_tower=True, violation_type=WrongValue)


# Ranges of numbers, for the type hints of what is `typed`; a mistake is told in the words of their functions' names.


def one_or_more(number: float) -> bool:
    return number >= 1


def zero_or_more(number: float) -> bool:
    return number >= 0


def finite_and_above_zero(number: float) -> bool:
    return 0 < number < math.inf


def from_zero_to_one(number: float) -> bool:
    return 0 <= number <= 1


Count: TypeAlias = Annotated[int, Is[one_or_more]]
Seed: TypeAlias = Annotated[int, Is[zero_or_more]]
NotNegative: TypeAlias = Annotated[float, Is[zero_or_more]]
Positive: TypeAlias = Annotated[float, Is[finite_and_above_zero]]
Share: TypeAlias = Annotated[float, Is[from_zero_to_one]]


def _wrong(name: str, why: str) -> str:
    """Returns the sentence for a parameter of a wrong value, from beartype's reason."""
    if match := OUT_OF_RANGE.match(why):
        return f"{name} is {match['value']}: it must be {match['range'].replace('_', ' ')}"
    if match := NO_CHOICE.match(why):
        return f"{name} is {match['value']}: it must be {match['choices']}"
    given, *types = why.split("\n* ")
    if types:  # "str 'x':\n* Not None.\n* Not instance of int."
        others = " or ".join(dict.fromkeys(re.sub(r"^(Not |!= )?(instance of )?|\.$", "", kind) for kind in types))
        why = f"{given.rstrip(':')} not {others}"
    why = re.sub(r'<protocol "[\w.]*?(\w+)">', lambda match: match[1].lower(), why)  # a sequence, a mapping
    return f"{name} has a wrong type: {why}"


def typed(decorated: Decorated) -> Decorated:
    """Decorates what gin files bind: a value of a wrong type is a user's mistake. An int is a float.

    One text is given where a sequence of texts is meant, as a sequence of itself.
    """
    checked: Any = beartype(conf=_TYPES)(decorated)
    called: Any = checked.__init__ if inspect.isclass(checked) else checked
    signature = inspect.signature(inspect.unwrap(called))
    texts = [name for name, parameter in signature.parameters.items() if TEXTS.match(str(parameter.annotation))]

    @functools.wraps(called)
    def listing(*arguments: Any, **named: Any) -> Any:
        alone = {name: (named[name],) for name in texts if isinstance(named.get(name), str)}
        return called(*arguments, **named | alone)

    # gin reads parameters and defaults from the outermost function, where beartype adds hidden ones of its own.
    outermost: Any = listing
    outermost.__signature__ = signature
    if inspect.isclass(checked):
        type.__setattr__(checked, "__init__", listing)
    else:
        checked = outermost
    checked.checks_types = True
    return checked


def lookup(options: Mapping[str, Option], name: str, what: str) -> Option:
    """Returns the option with a name; without one, the UserError calls the options a `what`, such as "prompt"."""
    if name not in options:
        raise UserError(f"there is no {what} {name!r}: choose one of {', '.join(options)}")
    return options[name]


def closest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns a clause that suggests the most similar name; empty if none is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {matches[0]}?" if matches else ""


def one_line(message: str) -> str:
    """Returns a message on one line, without the call trace that gin appends."""
    line = " ".join(message.split(TRAIL)[0].split())
    return CLASS.sub(r"\1", line).replace("NoneType", "None")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and those that led to it, the latest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def exhausted_memory(error: BaseException | None) -> str:
    """Returns what to do if an exception, or a cause of it, says that memory ran out; otherwise an empty text."""
    for cause in causes(error):
        if isinstance(cause, MemoryError):
            return f"this machine has too little memory ({one_line(str(cause)).rstrip('.') or 'none is left'})"
        if isinstance(cause, RuntimeError) and (match := NO_MEMORY.search(str(cause))):
            named = EXECUTABLE.search(str(cause))
            user = USES_MEMORY.get(named[1], "") if named else ""
            mends = [LESS_MEMORY[user]] if user else LESS_MEMORY.values()
            sure = "" if "out of memory" in match["said"].lower() else "probably "
            which, said = f" for the {user}" if user else "", excerpt(match["said"]).rstrip(". ")
            what = f"a device has {sure}too little memory{which} ({said})"
            return f"{what}: {'; '.join(mends)}; or end other processes that use it"
    return ""


def check_arguments(name: str, checked: Callable[..., Any], given: Iterable[tuple[str, Any]]) -> None:
    """Raises a UserError if a number or text among the arguments of what is `typed` is not of its type."""
    defined: Any = inspect.unwrap(checked)
    hints = get_type_hints(defined.__init__ if inspect.isclass(defined) else defined, include_extras=True)
    for parameter, value in given:
        if type(value) in (int, float, bool, str) and parameter in hints:
            check_type(f"{name}.{parameter}", value, hints[parameter])


def check_type(name: str, value: object, hint: Any) -> None:
    """Raises a UserError if the value of a parameter is not of its type; see `typed`."""
    from beartype.door import die_if_unbearable  # here, because --help needs none of it

    try:
        die_if_unbearable(value, hint, conf=_TYPES)
    except WrongValue as error:
        why = re.split(r"violates type hint .*?, as ", str(error), maxsplit=1, flags=re.DOTALL)[-1]
        raise UserError(one_line(_wrong(name, why))) from error


def excerpt(text: object) -> str:
    """Returns at most 300 characters of external text for a message, on one line and without passwords or keys."""
    return " ".join(without_secrets(str(text))[:300].split())


def first_problem(error: "pydantic.ValidationError") -> str:
    """Returns place and message of the first validation error, without values of the text."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = excerpt(".".join(map(str, problem["loc"])))
    return f"{where}: {problem['msg']}" if where else problem["msg"]
