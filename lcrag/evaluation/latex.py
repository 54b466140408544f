"""Tables as LaTeX, for a paper's source: needs the package booktabs, and nothing else."""

import itertools
import re

from lcrag.evaluation.table import Cell, Table

_ESCAPES = {
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


def escaped(text: str) -> str:
    """The text as LaTeX shows it."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def to_latex(table: Table) -> str:
    """The table as a `table` environment, labelled `tab:<its title in lower case>`."""
    columns = len(table.header)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.title)}.}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', table.title.lower()).strip('-')}}}",
        rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}",
        r"\toprule",
        *_spans(table),
        _line([escaped(name) for name in table.header]),
    ]
    for title, section in table.titled_sections():
        lines.append(r"\midrule")
        if title:
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\textit{{{escaped(title)}}}}} \\")
        lines += [_line([_cell(cell) for cell in line]) for line in section]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.note:
        lines.append(rf"\par\smallskip{{\footnotesize {escaped(table.note)}}}")
    return "\n".join([*lines, r"\end{table}", ""])


def _spans(table: Table) -> list[str]:
    """The header above the header, and the rules below its names."""
    if not table.spans:
        return []
    ends = list(itertools.accumulate((width for _, width in table.spans), initial=1))
    names = [rf"\multicolumn{{{width}}}{{c}}{{{escaped(name)}}}" for name, width in table.spans]
    rules = [
        rf"\cmidrule(lr){{{start + 1}-{end}}}"
        for (name, _), (start, end) in zip(table.spans, itertools.pairwise(ends), strict=True)
        if name
    ]
    return [_line(["", *names]), " ".join(rules)]


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    if cell.rank == "best" or cell.tone in ("better", "worse"):
        text = rf"\textbf{{{text}}}"
    elif cell.rank == "second":
        text = rf"\underline{{{text}}}"
    return text + (f"$^{{{cell.mark}}}$" if cell.mark else "")


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
