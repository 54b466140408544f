"""The configurations that come with lcrag: the experiments of a command, and what may stand behind one."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lcrag.app.cli.arguments import closest
from lcrag.app.composition.gin_files import Binding, packaged_folder, packaged_names, read_file
from lcrag.errors import UserError

WIDTH = 120
# Endings of files that include an experiment, but are of one command alone: what it goes on from, what ships with it.
OF_ONE_COMMAND = {"_sft.gin": "sft"}


def experiments(command: str, marks: Sequence[str]) -> list[str]:
    """The complete configurations of a command: files in no folder that bind, by themselves or what they include,
    one of its marks.

    Args:
      command: Its name.
      marks: Names of functions ("golden_plans"), or of parameters ("train.policy") where parts bind others.
    """
    names = [name for name in packaged_names() if "/" not in name and _may_be_of(command, name)]
    return [name for name in names if any(_marked(key, marks) for key in _keys(name))]


def _may_be_of(command: str, name: str) -> bool:
    return all(command == only for ending, only in OF_ONE_COMMAND.items() if name.endswith(ending))


def _marked(key: str, marks: Sequence[str]) -> bool:
    return any(key == mark or key.startswith(f"{mark}.") for mark in marks)


def _keys(name: str) -> Iterator[str]:
    return (statement.key for statement in read_file(name, here=False) if isinstance(statement, Binding))


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
    """The folders of files that stand behind an experiment, each with the number of its files, in indented lines."""
    counts = Counter(name.partition("/")[0] for name in packaged_names() if "/" in name)
    text = ", ".join(f"{folder}/ ({count})" for folder, count in counts.items())
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def list_configurations(output_dir: Path | None, words: Sequence[str]) -> None:
    """`lcrag list`: prints every configuration that comes with lcrag, or those of some folders.

    Args:
      output_dir: Not used.
      words: Folders; none: all of them, and the experiments.

    Raises:
      UserError: there is no such folder.
    """
    names = packaged_names()
    folders = list(dict.fromkeys(name.partition("/")[0] for name in names if "/" in name))
    for word in (word.rstrip("/") for word in words):
        if word not in folders:
            hint = closest(word, folders) or f"; there are {', '.join(folders)}"
            raise UserError(f"no folder {word} of configurations comes with lcrag{hint}")
    wanted = {word.rstrip("/") for word in words}
    print(described([name for name in names if not wanted or name.partition("/")[0] in wanted]), flush=True)
