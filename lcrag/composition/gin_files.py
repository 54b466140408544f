"""Finds gin files and reads their statements without importing the modules that they configure.

A file, named on the command line or included, is looked up in the working directory first, and then among the
configurations that come with lcrag (`gin/` in the repository, `lcrag/gin` in a wheel).
"""

import dataclasses
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from gin import config_parser

from lcrag.cli.arguments import closest
from lcrag.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True, repr=False)
class Reference:
    """A value `@scope/Name` or, evaluated, `@scope/Name()`."""

    name: str
    evaluated: bool

    def __str__(self) -> str:
        return f"@{self.name}{'()' if self.evaluated else ''}"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True, repr=False)
class Macro:
    """A value `%NAME`."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"

    __repr__ = __str__


def followed(value: Any, macros: Mapping[str, Any]) -> Any:
    """Returns the value of a macro, which may be set to another macro; returns any other value unchanged."""
    while isinstance(value, Macro) and value.name in macros:
        value = macros[value.name]
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Binding:
    """A statement `scope/selector.parameter = value`, or `NAME = value` for a macro, which has no parameter."""

    scope: str
    selector: str
    parameter: str
    value: Any
    place: str

    @property
    def key(self) -> str:
        scope = f"{self.scope}/" if self.scope else ""
        return f"{scope}{self.selector}{'.' if self.parameter else ''}{self.parameter}"

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}"


@dataclasses.dataclass(frozen=True)
class Import:
    """A statement `import module`."""

    module: str
    place: str

    def __str__(self) -> str:
        return f"import {self.module}"


class _PlainValues(config_parser.ParserDelegate):
    """Parses references and macros to plain data, because nothing is registered yet."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        return Reference(scoped_configurable_name, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def packaged_folder() -> Path:
    """Returns the folder of the configurations that come with lcrag."""
    inside = PACKAGE / "gin"
    return inside if inside.is_dir() else PACKAGE.parent / "gin"


def packaged_names(folder: Path | None = None) -> list[str]:
    """Returns the names, as for `--gin_file`, of all configurations that come with lcrag."""
    folder = folder or packaged_folder()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gin"))


def locate(name: str, mentioned_in: str = "", *, here: bool = True) -> Path:
    """Returns the path of the file named by `--gin_file=name`, or by `include 'name'` in the file `mentioned_in`.

    Args:
      name: The name as written.
      mentioned_in: The file that includes it; empty: none.
      here: Whether to look in the working directory before the configurations that come with lcrag.

    Raises:
      UserError: there is no such file.
    """
    for path in (Path(name), packaged_folder() / name)[0 if here else 1 :]:
        if path.is_file():
            return path
    by = f", included by {mentioned_in}," if mentioned_in else ""
    names = [*packaged_names(), *(str(path) for path in Path(name).parent.glob("*.gin"))]
    hint = closest(name, names) or "; `lcrag list` shows them"
    raise UserError(f"the gin file {name}{by} is neither here nor among those that come with lcrag{hint}")


def read_file(
    name: str, mentioned_in: str = "", ancestors: tuple[Path, ...] = (), *, here: bool = True
) -> Iterator[Binding | Import]:
    """Yields every binding and import of a file, with the statements of included files in place; see `locate`.

    Raises:
      UserError: A file is missing, includes itself, or a statement cannot be read.
    """
    path = locate(name, mentioned_in, here=here)
    if path.resolve() in ancestors:
        raise UserError(f"the gin file {name} includes itself")
    with path.open(encoding="utf-8") as file:
        for statement in _statements(file, str(path)):
            if isinstance(statement, config_parser.IncludeStatement):
                yield from read_file(statement.filename, str(path), (*ancestors, path.resolve()), here=here)
            else:
                yield from _plain(statement, str(path))


def read_bindings(lines: Sequence[str], place: str = "--gin") -> Iterator[Binding | Import]:
    """Yields the statements of command-line bindings, or of the text of a configuration.

    Raises:
      UserError: A statement cannot be read.
    """
    for line in lines:
        for statement in _statements(line, place):
            yield from _plain(statement, place)


def _plain(statement: Any, place: str) -> Iterator[Binding | Import]:
    where = place if place.startswith("--") else f"{place}:{statement.location.line_num}"
    if isinstance(statement, config_parser.ImportStatement):
        yield Import(statement.module, where)
    elif isinstance(statement, config_parser.BindingStatement):
        scope, selector, parameter, value, _ = statement
        yield Binding(scope=scope, selector=selector, parameter=parameter, value=value, place=where)


def _statements(text: str | TextIO, place: str) -> Iterator[Any]:
    try:
        yield from config_parser.ConfigParser(text, _PlainValues())
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise UserError(_unreadable(error, text if isinstance(text, str) else "", place)) from error


def _unreadable(error: Exception, text: str, place: str) -> str:
    """Returns the error message for a statement that gin's parser rejects."""
    if isinstance(error, UnicodeDecodeError):
        return f"cannot read {place}: it is not UTF-8"
    quotes = "a text needs quotes (NAME.parameter='\"text\"' in a shell), True, False and None a capital"
    if text and "\n" not in text.strip():
        return f"cannot read {place}.{text.strip().replace(' = ', '=', 1)}: {quotes}"
    line = getattr(error, "lineno", None)
    content = (getattr(error, "text", None) or "").strip()
    return f"cannot read {place}{f':{line}' if line else ''}{f': {content}' if content else ''}: {quotes}"
