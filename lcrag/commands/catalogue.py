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


def experiments(command: str, marks: Sequence[str]) -> list[str]:
    """Returns the names of the complete configurations of a command.

    Args:
      command: Its name.
      marks: Parameters that such a file or its includes must all bind; alternatives are separated by "|".
    """
    if not marks:
        return []
    incomplete = ("method.gin", "base.gin", *(() if command == "sft" else ("_sft.gin",)))
    names = (name for name in packaged_names() if not name.endswith(incomplete))
    return [name for name in names if all(_bound(name) & set(mark.split("|")) for mark in marks)]


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
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    wrapped = textwrap.TextWrapper(max(columns, width + 30), subsequent_indent=" " * width)
    lines = []
    for name, text in described.items():
        wrapped.initial_indent = f"  {name}".ljust(width)
        lines.append(wrapped.fill(text))
    return "\n".join(lines)


def parts() -> str:
    """Returns indented lines with the folders of configurations and their numbers of files."""
    counts = Counter(name.partition("/")[0] for name in packaged_names() if "/" in name)
    text = ", ".join(f"{folder}/ ({count})" for folder, count in counts.items())
    return textwrap.fill(text, 120, initial_indent="  ", subsequent_indent="  ")


def list_configurations(arguments: Arguments) -> None:
    """Runs `lcrag list`: prints all packaged configurations, or those of the folders in its words."""
    if arguments.gin_files or arguments.bindings or arguments.output_dir:
        raise UserError("lcrag list takes folders only: leave its options out")
    names = packaged_names()
    folders = list(dict.fromkeys(name.partition("/")[0] for name in names if "/" in name))
    wanted = {word.rstrip("/") for word in arguments.words}
    for word in wanted - set(folders):
        hint = closest(word, folders) or f"; there are {', '.join(folders)}"
        raise UserError(f"no folder {word} of configurations comes with lcrag{hint}")
    print(described([name for name in names if not wanted or name.partition("/")[0] in wanted]), flush=True)
