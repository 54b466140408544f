"""The configurations that come with lcrag: the experiments of a command, and the files that may follow one."""

import textwrap
from collections import Counter
from collections.abc import Sequence

from lcrag.app.cli.arguments import Arguments, closest
from lcrag.app.composition.gin_files import Binding, packaged_folder, packaged_names, read_file
from lcrag.errors import UserError

WIDTH = 120
COLD_START = "_sft.gin"  # an experiment's file for `lcrag sft` alone
PARTS = ("method.gin", "base.gin")  # files that bind what an experiment does, but are included by one


def experiments(command: str, marks: Sequence[str]) -> list[str]:
    """The complete configurations of a command.

    Args:
      command: Its name.
      marks: Parameters that such a file, or one that it includes, binds, every one of them; alternatives are separated
        by "|".
    """
    if not marks:
        return []
    return [name for name in packaged_names() if _may_be_of(command, name) and _binds(name, marks)]


def _may_be_of(command: str, name: str) -> bool:
    return not name.endswith(PARTS) and (command == "sft" or not name.endswith(COLD_START))


def _binds(name: str, marks: Sequence[str]) -> bool:
    bound = {statement.key for statement in read_file(name, here=False) if isinstance(statement, Binding)}
    return all(bound & set(mark.split("|")) for mark in marks)


def described(names: Sequence[str]) -> str:
    """One line for each file that comes with lcrag: its name and what its first line says of it."""
    folder = packaged_folder()
    width = max(map(len, names), default=0)
    firsts = ((folder / name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name in names)
    room = WIDTH - width - 4
    return "\n".join(
        f"  {name:{width}}  {textwrap.shorten(first, room, placeholder=' ...')}"
        for name, first in zip(names, firsts, strict=True)
    )


def parts() -> str:
    """The folders of configurations, each with the number of its files, in indented lines."""
    counts = Counter(name.partition("/")[0] for name in packaged_names() if "/" in name)
    text = ", ".join(f"{folder}/ ({count})" for folder, count in counts.items())
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def list_configurations(arguments: Arguments) -> None:
    """`lcrag list`: prints every configuration that comes with lcrag, or those of the folders that its words name.

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
