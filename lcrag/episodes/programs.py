"""Settings of episode programs: what a program runs with, and copies of it with other settings.

A program is a generator function of a question and the languages of the collections, with keyword-only settings. gin
binds the settings, so the value of one is known when the program is called. The generator holds it from then on,
before anything of its body has run.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from beartype import BeartypeConf
from beartype.door import is_bearable

from lcrag.data.questions import Question
from lcrag.episodes.requests import Program
from lcrag.errors import UserError

ConfiguredProgram: TypeAlias = Callable[[Question, Sequence[str]], Program]

# What all programs of an experiment share (gin/programs.gin), and a program may lack.
SHARED = ("budget", "passages", "observation_tokens", "invalid_limit", "wording")
_EXAMPLE = Question(id="example", dataset="example", language="en", text="Where is this city?", answers=("?",))
_INT_IS_FLOAT = BeartypeConf(is_pep484_tower=True)


def program_name(program: Callable[..., Any]) -> str:
    """Returns the name of a program's function."""
    return getattr(_function(program), "__name__", type(program).__name__)


def program_settings(program: Callable[..., Any]) -> dict[str, Any]:
    """Returns the settings with which a program runs: those that gin binds, and its defaults.

    Only a generator function has them; any other callable may have effects, and is not called.
    """
    if not is_program(program):
        return {}
    held = inspect.getgeneratorlocals(program(_EXAMPLE, ("en",)))
    held |= held.get("kwargs", {})  # the generator of a decorator, such as beartype's, holds them there
    parameters = inspect.signature(_function(program)).parameters.values()
    return {each.name: held.get(each.name, each.default) for each in parameters if each.kind is each.KEYWORD_ONLY}


def check_settings(program: Callable[..., Any]) -> None:
    """Raises a UserError if a setting of a program, or of those that it runs, has a wrong type or is negative."""
    for each in _with_inner(program):
        hints = typing.get_type_hints(_function(each))
        for name, value in program_settings(each).items():
            place = f"{program_name(each)}.{name}"
            if not is_bearable(value, hints.get(name, Any), conf=_INT_IS_FLOAT):
                raise UserError(
                    f"{place} is {value!r}, but its type is {getattr(hints[name], '__name__', hints[name])}"
                )
            if isinstance(value, int | float) and value < 0:
                raise UserError(f"{place} is {value}: set it to 0 or more")


def with_settings(program: ConfiguredProgram, settings: Mapping[str, Any]) -> ConfiguredProgram:
    """Returns a program with changed settings, applied also to the programs that it runs.

    Settings are given by name, such as {"passages": 5}; of those in `SHARED`, a program ignores what it lacks.
    """
    known = {name for each in _with_inner(program) for name in program_settings(each)}.union(SHARED)
    if unknown := [name for name in settings if name not in known]:
        raise UserError(
            f"Evaluation.program_settings sets {unknown[0]}, which {program_name(program)} does not have; it has"
            f" {', '.join(sorted(known))}"
        )
    return _changed(program, settings)


def _changed(program: Any, settings: Mapping[str, Any]) -> Any:
    """Returns a program, or a dict of programs, with changed settings; any other value as it is."""
    if isinstance(program, Mapping):
        return {name: _changed(each, settings) for name, each in program.items()}
    if not is_program(program):
        return program
    own = program_settings(program)
    inner = {name: _changed(value, settings) for name, value in own.items() if any(_programs_in(value))}
    return functools.partial(program, **inner | {name: settings[name] for name in settings if name in own})


def _with_inner(program: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yields a program and the programs that its settings name, at any depth."""
    yield program
    for value in program_settings(program).values():
        for each in _programs_in(value):
            yield from _with_inner(each)


def _programs_in(value: Any) -> list[Any]:
    return [each for each in (value.values() if isinstance(value, Mapping) else (value,)) if is_program(each)]


def is_program(value: Any) -> bool:
    """Whether a value is a program, with or without settings."""
    return callable(value) and inspect.isgeneratorfunction(_function(value))


def _function(program: Any) -> Any:
    """Returns the function that a program, wrapped by gin or with changed settings, finally calls."""
    while isinstance(program, functools.partial) or hasattr(program, "__wrapped__"):
        program = program.func if isinstance(program, functools.partial) else program.__wrapped__
    return program
