"""A finished table: built once, printed in the terminal by rich, and written as Markdown (and by `latex` as LaTeX)."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import rich.box
import rich.table
import rich.text

Tone = Literal["", "better", "worse", "level"]
Rank = Literal["", "best", "second"]

_STYLES = {"": "", "better": "bold green", "worse": "bold red", "level": "dim", "best": "bold", "second": "underline"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
      text: What it says.
      tone: How a difference is to be seen.
      rank: Whether it is the best or the second of its column.
      mark: A sign behind it that the table's note explains.
    """

    text: str
    tone: Tone = ""
    rank: Rank = ""
    mark: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A finished table.

    Attributes:
      title: Its title.
      header: Names of the columns; the first one names the rows.
      sections: Rows, in groups that a line separates.
      note: What a reader must know to read the numbers.
      section_titles: What each group of rows has in common; empty: nothing is said.
      spans: Names of neighbouring columns together, (name, how many), from the second column on; an empty name says
        nothing; shown where a table can have a second header.
    """

    title: str
    header: tuple[str, ...]
    sections: tuple[tuple[tuple[Cell, ...], ...], ...]
    note: str = ""
    section_titles: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()

    def titled_sections(self) -> list[tuple[str, tuple[tuple[Cell, ...], ...]]]:
        """Every section with its title, "" where it has none."""
        titles = self.section_titles or ("",) * len(self.sections)
        return list(zip(titles, self.sections, strict=True))


def to_rich(table: Table) -> rich.table.Table:
    """The table for a terminal."""
    out = rich.table.Table(
        title=rich.text.Text(table.title, "bold"),
        title_justify="left",
        caption=table.note,
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for number, name in enumerate(table.header):
        # Two-line headers keep the usual table within a hundred columns.
        out.add_column(name if number == 0 else name.replace(" ", "\n", 1), justify="right" if number else "left")
    for title, section in table.titled_sections():
        if title:
            out.add_row(rich.text.Text(title, "italic"))
        for line in section:
            out.add_row(*map(_rich, line))
        out.add_section()
    return out


def _rich(cell: Cell) -> rich.text.Text:
    return rich.text.Text(cell.text, _STYLES[cell.rank or cell.tone]).append(cell.mark)


def to_markdown(table: Table) -> str:
    """The table as Markdown; what is coloured in the terminal, and what is best, is bold."""
    lines = [f"**{table.title}**", "", _markdown_line(table.header)]
    lines.append(_markdown_line(["---", *["---:"] * (len(table.header) - 1)]))
    for title, section in table.titled_sections():
        if title:
            lines.append(_markdown_line([f"_{title}_", *[""] * (len(table.header) - 1)]))
        lines += [_markdown_line([_markdown(cell) for cell in line]) for line in section]
    return "\n".join([*lines, "", table.note.replace("*", "\\*"), ""]) if table.note else "\n".join([*lines, ""])


def _markdown(cell: Cell) -> str:
    text, mark = (part.replace("|", "\\|").replace("*", "\\*") for part in (cell.text, cell.mark))
    if cell.tone in ("better", "worse") or cell.rank == "best":
        text = f"**{text}**"
    return (f"<u>{text}</u>" if cell.rank == "second" else text) + mark


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
