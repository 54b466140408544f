"""Parses the words of a command line: `lcrag COMMAND [WORD ...] [--option=value ...]`."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from lcrag.errors import SECRET, UserError

FLAGS = ("--help", "--traceback", "--allow_unused", "--no_compilation_cache")
OPTIONS = ("--gin_file", "--output_dir")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """A parsed command line.

    Attributes:
      command: The first word, None if there was none.
      words: The other words, in order.
      gin_files: Values of `--gin_file`, in order.
      bindings: `--gin.Scope.param=value` as gin statements, `Scope.param = value`, in order.
      output_dir: Value of `--output_dir`.
      others: Options of single commands with their values, in order.
      switches: Options of single commands that take no value.
      show_help: Whether `--help` was among them.
      traceback: Whether errors show a traceback.
      allow_unused: Whether bindings that the command does not use are accepted.
      compilation_cache: Whether compiled programs are cached for later commands.
    """

    command: str | None = None
    words: tuple[str, ...] = ()
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    output_dir: Path | None = None
    others: tuple[tuple[str, str], ...] = ()
    switches: tuple[str, ...] = ()
    show_help: bool = False
    traceback: bool = False
    allow_unused: bool = False
    compilation_cache: bool = True


def closest(name: str, names: Iterable[str]) -> str:
    """Returns a clause that suggests the most similar name; empty if none is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""


def split_arguments(argv: Sequence[str], others: Sequence[str] = (), switches: Sequence[str] = ()) -> Arguments:
    """Parses the words after `lcrag`.

    Args:
      argv: The words.
      others: Options of single commands, in addition to OPTIONS; each takes a value.
      switches: Options of single commands, in addition to FLAGS; none takes a value.

    Raises:
      UserError: An option that does not exist, lacks its value or, for a binding, its `=`, or holds a secret.
    """
    words: list[str] = []
    flags: set[str] = set()
    bindings: list[str] = []
    values: dict[str, list[str]] = {option: [] for option in (*OPTIONS, *others)}
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--":
            words.extend(rest)
        elif word in ("-h", *FLAGS, *switches):
            flags.add("--help" if word == "-h" else word)
        elif name in values:
            values[name].append(_value_of(name, value if equals else next(rest, "")))
        elif name.startswith("--gin."):
            bindings.append(_binding(word, name, equals, value))
        elif word.startswith("-") and len(word) > 1:
            raise UserError(f"there is no option {name}{closest(name, (*FLAGS, *switches, *values))}")
        else:
            words.append(word)
    return Arguments(
        command=words[0] if words else None,
        words=tuple(words[1:]),
        gin_files=tuple(values["--gin_file"]),
        bindings=tuple(bindings),
        output_dir=Path(values["--output_dir"][-1]) if values["--output_dir"] else None,
        others=tuple((option, value) for option in others for value in values[option]),
        switches=tuple(switch for switch in switches if switch in flags),
        show_help="--help" in flags,
        traceback="--traceback" in flags,
        allow_unused="--allow_unused" in flags,
        compilation_cache="--no_compilation_cache" not in flags,
    )


def _value_of(option: str, value: str) -> str:
    if not value or value.startswith("--"):
        raise UserError(f"{option} needs a value: {option}=VALUE")
    return value


def _binding(word: str, name: str, equals: str, value: str) -> str:
    if not equals or not value:
        raise UserError(f"the binding {word} has no value: write {name}=VALUE, without spaces around =")
    check_no_secret(name, value)
    return f"{name.removeprefix('--gin.')} = {value}"


def check_no_secret(name: str, value: str) -> None:
    """Raises a UserError if a value contains an address with a password or a key, which results would store."""
    if SECRET.search(value):
        raise UserError(
            f"{name} holds a password or a key in an address, which config.gin would keep: leave it out, and give keys"
            " in environment variables (OPENAI_API_KEY, SERPAPI_API_KEY, GOOGLE_API_KEY)"
        )


def whole_number(option: str, text: str, least: int = 0) -> int:
    """Returns the number that was given to an option.

    Raises:
      UserError: it is not a whole number, or less than `least`.
    """
    if not text.isdecimal() or int(text) < least:
        of = f" of {least} or more" if least else ""
        raise UserError(f"{option} takes a whole number{of}, not {text!r}")
    return int(text)
