"""gin: where its files are, the engine's classes as configurables, and its errors as one sentence.

A file, named on the command line or included, is looked up in the working directory first, and then among the
configurations that come with lcrag (`gin/` in the repository, `lcrag/gin` in a wheel). Everything outside the engine is
decorated with `@gin.configurable` where it is defined; `register` imports it.
"""

import contextlib
import functools
import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import gin

from lcrag.errors import TRAIL, UserError, closest, one_line
from lcrag.runs.configuration import expect_used

PACKAGE = Path(__file__).resolve().parent
NO_VALUE = re.compile(
    r"(?P<function>\w+)(\.__init__)?\(\) missing \d+ required [a-z-]+ arguments?: (?P<parameters>.*)"
    rf"(?s:.*?){TRAIL} '(?P<name>[^']+)' \((?P<called>.*)\)"
)
NOWHERE = re.compile(r"No configurable matching (?:reference )?'?@?(?P<name>[\w./]+)")


def packaged_folder() -> Path:
    """Returns the folder of the configurations that come with lcrag."""
    inside = PACKAGE / "gin"
    return inside if inside.is_dir() else PACKAGE.parent / "gin"


def packaged_names() -> list[str]:
    """Returns the names, as for `--gin_file`, of all configurations that come with lcrag."""
    folder = packaged_folder()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gin"))


@functools.cache
def register() -> None:
    """Makes every configurable known to gin; takes the seconds that importing JAX and the rooms takes."""
    importlib.import_module("lcrag.composition.commands")
    gin.add_config_file_search_path(str(packaged_folder()))


def configure(
    gin_files: Sequence[str],
    bindings: Sequence[str] = (),
    *,
    may_be_unused: bool = True,
    typed_bindings: Sequence[str] | None = None,
) -> None:
    """Parses files and bindings, in this order, into gin's configuration, which it replaces.

    Args:
      gin_files: Values of `--gin_file`.
      bindings: Statements as after `--gin.`: `policy.folder = "exported"`.
      may_be_unused: Whether bindings may have no effect; otherwise `operative_config` refuses those.
      typed_bindings: Those of `bindings` that a person has typed and that must have an effect; None: all.

    Raises:
      UserError: a file is missing, or a statement cannot be read or names something unknown.
    """
    register()
    gin.clear_config()
    for name in gin_files:
        with _as_sentence(f"--gin_file={name}"):
            gin.parse_config_file(name)
    for binding in bindings:
        with _as_sentence(f"--gin.{binding.replace(' = ', '=', 1)}"):
            gin.parse_config(binding)
    with _as_sentence("the configuration"):
        gin.finalize()
    expect_used(() if may_be_unused else bindings if typed_bindings is None else typed_bindings)


@contextlib.contextmanager
def _as_sentence(place: str) -> Iterator[None]:
    """Turns gin's exceptions into a UserError that names the file and line, or the binding."""
    logging.disable(logging.ERROR)  # gin logs every place where it has not found a file
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        missing = re.search(r"Unable to open file: (\S+?)\.? ", f"{error} ")
        name = missing[1] if missing else place
        hint = closest(name, packaged_names()) or "; `lcrag list` shows them"
        raise UserError(
            f"{place}: the gin file {name} is neither here nor among those that come with lcrag{hint}"
        ) from error
    except (ValueError, KeyError, TypeError, SyntaxError, RuntimeError, ImportError, AttributeError) as error:
        message = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
        at = re.search(r'In file "(?P<file>[^"]*)", line (?P<line>\d+)', message)
        where = f"{at['file']}:{at['line']}" if at and place.startswith("--gin_file") else place
        what = message.split("\n")[0]
        if unknown := NOWHERE.search(what):
            names = {name.rpartition(".")[2] for name in _registered_names()}
            what = f"there is nothing called {unknown['name']}{closest(unknown['name'].rpartition('/')[2], names)}"
        elif isinstance(error, SyntaxError) or "literal" in what:
            what += "; a text needs quotes (NAME.parameter='\"text\"' in a shell), True, False and None a capital"
        raise UserError(f"{where}: {one_line(what)}") from error
    finally:
        logging.disable(logging.NOTSET)


def _registered_names() -> list[str]:
    """Names that `gin.config_str` would accept, for hints: those of the packaged files."""
    text = "\n".join((packaged_folder() / name).read_text(encoding="utf-8") for name in packaged_names())
    return re.findall(r"([A-Za-z_]\w*)\.\w+ =", text)


@contextlib.contextmanager
def missing_as_sentence() -> Iterator[None]:
    """Turns the exception for a parameter of a configurable without a value into a UserError."""
    try:
        yield
    except (TypeError, RuntimeError) as error:
        message = str(error)
        found = NO_VALUE.search(message)
        if found is None or found["function"] not in found["called"]:
            raise  # a wrong call inside a configurable, which no binding can correct
        called = re.search(rf"{TRAIL} '{found['name'].rpartition('.')[2]}' \(.*\) in scope '([^']+)'", message)
        name = f"{called[1]}/{found['name']}" if called else found["name"]
        first, *others = re.findall(r"'(\w+)'", found["parameters"])
        more = f" (nor have {', '.join(others)})" if others else ""
        raise UserError(
            f"{name}.{first} has no value{more}: bind it in a gin file or with --gin.{name}.{first}=VALUE"
        ) from error


def text() -> str:
    """Returns all bindings of the configuration, used or not, as the text of a gin file."""
    return gin.config_str()
