"""Parses the words of a command line: `lcrag COMMAND [WORD ...] [--option=value ...]`."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lcrag.errors import SECRET, UserError, closest

FLAGS = ("--help", "--traceback", "--allow_unused", "--no_compilation_cache")
OPTIONS = ("--gin_file", "--output_dir")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """A parsed command line."""

    command: str | None  # the first word
    words: tuple[str, ...]  # the other words
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...]  # `--gin.Scope.param=value` as gin statements, `Scope.param = value`
    output_dir: Path | None
    others: Mapping[str, str]  # options of single commands with their values
    switches: tuple[str, ...]  # options of single commands that take no value
    flags: tuple[str, ...]  # which of FLAGS were given


class _Parser(argparse.ArgumentParser):
    """Raises a UserError in place of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument ").replace(": expected one argument", " needs a value"))


def split_arguments(argv: Sequence[str], others: Sequence[str] = (), switches: Sequence[str] = ()) -> Arguments:
    """Parses the words after `lcrag`.

    Args:
      argv: The words.
      others: Options of single commands, in addition to OPTIONS; each takes a value.
      switches: Options of single commands, in addition to FLAGS; none takes a value.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--gin_file", action="append", default=[])
    parser.add_argument("--output_dir", type=Path)
    for option in dict.fromkeys(others):
        parser.add_argument(option)
    for switch in (*FLAGS, *switches):
        parser.add_argument(*(["-h"] if switch == "--help" else []), switch, action="store_true")
    # argparse would take a binding with a space in its value for a word.
    given, unknown = parser.parse_known_intermixed_args([word for word in argv if not word.startswith("--gin.")])
    if unknown:
        name = unknown[0].partition("=")[0]
        raise UserError(f"there is no option {name}{closest(name, (*FLAGS, *OPTIONS, *others, *switches))}")
    bindings = []
    for word in argv:
        if word.startswith("--gin."):
            name, _, value = word.partition("=")
            if not value:
                raise UserError(f"the binding {word} has no value: write {name}=VALUE, without spaces around =")
            if SECRET.search(value):
                raise UserError(
                    f"{name} holds a password or a key in an address, which config.gin would keep: leave it out, and"
                    " give keys in environment variables (OPENAI_API_KEY, SERPAPI_API_KEY, GOOGLE_API_KEY)"
                )
            bindings.append(f"{name.removeprefix('--gin.')} = {value}")
    value_of = {f"--{name}": value for name, value in vars(given).items()}
    return Arguments(
        command=given.words[0] if given.words else None,
        words=tuple(given.words[1:]),
        gin_files=tuple(given.gin_file),
        bindings=tuple(bindings),
        output_dir=given.output_dir,
        others={option: value_of[option] for option in others if value_of[option] is not None},
        switches=tuple(switch for switch in switches if value_of[switch]),
        flags=tuple(flag for flag in FLAGS if value_of[flag]),
    )


def whole_number(option: str, text: str, least: int = 0) -> int:
    """Returns the number that was given to an option; raises a UserError if it is not one, or less than `least`."""
    if not text.isdecimal() or int(text) < least:
        of = f" of {least} or more" if least else ""
        raise UserError(f"{option} takes a whole number{of}, not {text!r}")
    return int(text)
