"""A table of results, and its rendering for the terminal (rich), Markdown and LaTeX (package booktabs)."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Literal

import rich.box
import rich.table
import rich.text

Tone = Literal["", "better", "worse", "level"]
Rank = Literal["", "best", "second"]

_STYLES = {"": "", "better": "bold green", "worse": "bold red", "level": "dim", "best": "bold", "second": "underline"}
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "<": r"$<$",
    ">": r"$>$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    tone: Tone = ""  # how a difference is coloured
    rank: Rank = ""  # whether it is the best or the second best of its column
    mark: str = ""  # sign after the text that the table's note explains

    @property
    def bold(self) -> bool:
        """Whether the cell is bold in formats without colours."""
        return self.rank == "best" or self.tone in ("better", "worse")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results."""

    title: str
    header: tuple[str, ...]  # names of the columns; the first one names the rows
    sections: tuple[tuple[tuple[Cell, ...], ...], ...]  # groups of rows, separated by a line
    note: str = ""  # explanation below the table
    section_titles: tuple[str, ...] = ()  # empty: no titles
    spans: tuple[tuple[str, int], ...] = ()  # (heading, number of columns) from the second column on; LaTeX only

    def titled_sections(self) -> list[tuple[str, tuple[tuple[Cell, ...], ...]]]:
        """Returns (title, rows) of every section; the title is "" if sections have none."""
        titles = self.section_titles or ("",) * len(self.sections)
        return list(zip(titles, self.sections, strict=True))


def to_rich(table: Table) -> rich.table.Table:
    """Renders a table for the terminal."""
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
            out.add_row(
                *(rich.text.Text(cell.text, _STYLES[cell.rank or cell.tone]).append(cell.mark) for cell in line)
            )
        out.add_section()
    return out


def to_markdown(table: Table) -> str:
    """Renders a table as Markdown; coloured and best cells are bold."""
    others = len(table.header) - 1
    lines = [f"**{table.title}**", "", _markdown_line(table.header), _markdown_line(["---", *["---:"] * others])]
    for title, section in table.titled_sections():
        if title:
            lines.append(_markdown_line([f"_{title}_", *[""] * others]))
        lines += [_markdown_line([_markdown(cell) for cell in line]) for line in section]
    return "\n".join([*lines, "", table.note.replace("*", "\\*"), ""]) if table.note else "\n".join([*lines, ""])


def _markdown(cell: Cell) -> str:
    text, mark = (part.replace("|", "\\|").replace("*", "\\*") for part in (cell.text, cell.mark))
    text = f"**{text}**" if cell.bold else text
    return (f"<u>{text}</u>" if cell.rank == "second" else text) + mark


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_latex(table: Table) -> str:
    """Renders a table as a LaTeX environment `table` with the label `tab:<title in lower case>`."""
    columns = len(table.header)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.title)}.}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', table.title.lower()).strip('-')}}}",
        rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}",
        r"\toprule",
        *_latex_spans(table),
        _latex_line([escaped(name) for name in table.header]),
    ]
    for title, section in table.titled_sections():
        lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\textit{{{escaped(title)}}}}} \\")
        lines += [_latex_line([_latex(cell) for cell in line]) for line in section]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.note:
        lines.append(rf"\par\smallskip{{\footnotesize {escaped(table.note)}}}")
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_spans(table: Table) -> list[str]:
    """Returns the line of headings over several columns, and the rules below them."""
    if not table.spans:
        return []
    ends = list(itertools.accumulate((width for _, width in table.spans), initial=1))
    names = [rf"\multicolumn{{{width}}}{{c}}{{{escaped(name)}}}" for name, width in table.spans]
    rules = [
        rf"\cmidrule(lr){{{start + 1}-{end}}}"
        for (name, _), (start, end) in zip(table.spans, itertools.pairwise(ends), strict=True)
        if name
    ]
    return [_latex_line(["", *names]), " ".join(rules)]


def _latex(cell: Cell) -> str:
    text = escaped(cell.text)
    text = rf"\textbf{{{text}}}" if cell.bold else rf"\underline{{{text}}}" if cell.rank == "second" else text
    return text + (f"$^{{{cell.mark}}}$" if cell.mark else "")


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    """Escapes a text for LaTeX."""
    return "".join(_LATEX_ESCAPES.get(character, character) for character in text)
