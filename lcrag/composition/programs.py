"""Episode programs as gin configurables, with settings from gin, from `every_program` and from evaluation.

A reference such as `@hierarchical_search()` gives a `functools.partial` of the program with its settings. Each episode
calls it with its question and the languages of the collections.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import gin

from lcrag.cli.arguments import closest
from lcrag.composition.bindings import check_value
from lcrag.data.questions import Question
from lcrag.episodes import Program
from lcrag.errors import UserError
from lcrag.limits import Amount, Count, Passages

ConfiguredProgram: TypeAlias = Callable[[Question, Sequence[str]], Program]
Result = TypeVar("Result")

_KNOWN: set[str] = set()  # every setting of a registered program


@gin.configurable(module="lcrag.methods")
def every_program(
    budget: Amount | None = None,
    passages: Passages | None = None,
    observation_tokens: Count | None = None,
    invalid_limit: Amount | None = None,
    wording: str | None = None,
) -> dict[str, Any]:
    """Settings for all programs of an experiment, which give methods equal budgets.

    They apply to the programs that have a parameter of the same name. A binding of the program itself, such as
    `rag.passages = 9`, takes precedence. None: the program's default.

    Args:
      budget: Maximum number of searches in an episode.
      passages: Number of passages per searched language for each search.
      observation_tokens: Maximum length of the observation of a search, in tokens.
      invalid_limit: Maximum number of invalid actions in an episode.
      wording: Wording of prompts: "full" for instruction-tuned models, "atlas" for the built-in tiny model.
    """
    shared: dict[str, Any] = {"budget": budget, "passages": passages, "observation_tokens": observation_tokens}
    shared |= {"invalid_limit": invalid_limit, "wording": wording}
    return {name: value for name, value in shared.items() if value is not None}


SHARED = tuple(inspect.signature(every_program).parameters)


def configurable_settings(
    function: Callable[..., Result], shared: Sequence[str] = (), **built: Callable[[], Any]
) -> Callable[..., Callable[[Question, Sequence[str]], Result]]:
    """Registers a configurable that takes a function's settings and returns a `functools.partial` with them.

    Args:
      function: Takes a question and the languages of the collections by position, and its settings by keyword.
      shared: Settings that have the value of `every_program` if they are not bound.
      built: Settings that cannot be bound, each with the function that creates its value.
    """
    signature = inspect.signature(function)
    settings = [
        each for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY and each.name not in built
    ]
    hints = typing.get_type_hints(function, include_extras=True)
    defaults = {each.name: each.default for each in settings if each.default is not each.empty}

    def configured(**given: Any) -> Callable[[Question, Sequence[str]], Result]:
        of_all = {name: value for name, value in every_program().items() if name in shared} if shared else {}
        made = {name: build() for name, build in built.items()}
        return functools.partial(function, **defaults | of_all | made | given)

    # gin records defaults as used values. The defaults of shared settings are not used if `every_program` binds them.
    shown = [each.replace(default=each.empty) if each.name in shared else each for each in settings]
    configured.__name__ = configured.__qualname__ = function.__name__
    configured.__doc__, configured.__module__ = function.__doc__, function.__module__
    configured.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    configured.__annotations__ = {each.name: hints[each.name] for each in settings}
    return gin.external_configurable(configured, module="lcrag.methods")


def configurable_program(program: Callable[..., Program], **built: Callable[[], Any]) -> Callable[..., Any]:
    """Registers a program whose shared settings come from `every_program`; see `configurable_settings`."""
    names = [each.name for each in inspect.signature(program).parameters.values() if each.kind is each.KEYWORD_ONLY]
    _KNOWN.update(names)
    return configurable_settings(program, [name for name in names if name in SHARED], **built)


def with_settings(program: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns a configured program with changed settings, applied also to the programs that it runs.

    Args:
      program: A configured program; any other function is returned unchanged.
      settings: New values by name, such as {"passages": 5}; a program ignores settings that it does not have.

    Raises:
      UserError: no registered program has a setting of that name.
    """
    if unknown := [name for name in settings if name not in _KNOWN]:
        hint = closest(unknown[0], _KNOWN) or f"; they have {', '.join(sorted(_KNOWN))}"
        raise UserError(f"Evaluation.program_settings sets {unknown[0]}, which no program has{hint}")
    return _changed(program, settings)


def _changed(value: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(value, functools.partial):
        inner = {name: _changed(each, settings) for name, each in value.keywords.items()}
        own = {name: each for name, each in settings.items() if name in inner}
        return functools.partial(value.func, *value.args, **inner | own)
    if isinstance(value, dict):
        return {name: _changed(each, settings) for name, each in value.items()}
    return value


def check_settings(program: Any) -> None:
    """Checks the settings of a configured program, and of programs among them, against the annotated types.

    Raises:
      UserError: a setting has the wrong type or is out of range.
    """
    if isinstance(program, dict):
        for each in program.values():
            check_settings(each)
    if not isinstance(program, functools.partial):
        return
    hints = typing.get_type_hints(program.func, include_extras=True)
    for name, value in program.keywords.items():
        check_value(f"{program.func.__name__}.{name}", value, hints.get(name, Any))
        check_settings(value)
