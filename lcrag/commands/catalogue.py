"""Lists the packaged configurations: the experiments of a command, and the files that may follow one."""

import functools
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from lcrag.commands.arguments import Arguments
from lcrag.config import packaged_folder, packaged_names
from lcrag.errors import UserError, closest

WIDTH = 120
LEAST_WIDTH = 30  # of descriptions, on a narrow terminal
COLD_START = "_sft.gin"  # an experiment's file for `lcrag sft` alone
PARTS = ("method.gin", "base.gin")  # incomplete files that experiments include


def experiments(command: str, marks: Sequence[str]) -> list[str]:
    """Returns the names of the complete configurations of a command.

    Args:
      command: Its name.
      marks: Parameters that such a file or its includes must all bind; alternatives are separated by "|".
    """
    if not marks:
        return []
    return [name for name in packaged_names() if _may_be_of(command, name) and _binds(name, marks)]


def _may_be_of(command: str, name: str) -> bool:
    return not name.endswith(PARTS) and (command == "sft" or not name.endswith(COLD_START))


def _binds(name: str, marks: Sequence[str]) -> bool:
    return all(_bound(name) & set(mark.split("|")) for mark in marks)


@functools.cache
def _bound(name: str) -> set[str]:
    """Returns the parameters that a packaged file or its includes bind."""
    text = (packaged_folder() / name).read_text(encoding="utf-8")
    included = re.findall(r"^include '(.*)'", text, re.MULTILINE)
    return set(re.findall(r"^([\w./]+\.\w+) =", text, re.MULTILINE)).union(*map(_bound, included))


def described(names: Sequence[str]) -> str:
    """Returns packaged files, each with the description in its first line; see `rows`."""
    folder = packaged_folder()
    return rows({name: (folder / name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name in names})


def rows(described: Mapping[str, str]) -> str:
    """Formats names and descriptions in two columns, wrapped on a terminal and one line each in a pipe."""
    width = max(map(len, described), default=0) + 4
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    return "\n".join(
        textwrap.fill(
            text,
            max(columns, width + LEAST_WIDTH) if columns else sys.maxsize,
            initial_indent=f"  {name}".ljust(width),
            subsequent_indent=" " * width,
        )
        for name, text in described.items()
    )


def parts() -> str:
    """Returns indented lines with the folders of configurations and their numbers of files."""
    counts = Counter(name.partition("/")[0] for name in packaged_names() if "/" in name)
    text = ", ".join(f"{folder}/ ({count})" for folder, count in counts.items())
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def list_configurations(arguments: Arguments) -> None:
    """Runs `lcrag list`: prints all packaged configurations, or those of the folders in its words.

    Raises:
      UserError: There is no such folder, or there are options.
    """
    if arguments.gin_files or arguments.bindings or arguments.output_dir:
        raise UserError("lcrag list takes folders only: leave its options out")
    names = packaged_names()
    folders = list(dict.fromkeys(name.partition("/")[0] for name in names if "/" in name))
    wanted = {word.rstrip("/") for word in arguments.words}
    for word in wanted - set(folders):
        hint = closest(word, folders) or f"; there are {', '.join(folders)}"
        raise UserError(f"no folder {word} of configurations comes with lcrag{hint}")
    print(described([name for name in names if not wanted or name.partition("/")[0] in wanted]), flush=True)
