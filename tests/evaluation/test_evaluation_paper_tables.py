"""The paper's tables: their columns, ranks, marks, and what Markdown, LaTeX and the terminal make of them."""

import re

import pytest
import rich.console
from evaluation_trials import trial

from lcrag.evaluation import to_markdown, to_rich
from lcrag.evaluation.latex import escaped, to_latex
from lcrag.evaluation.paper_tables import (
    Marking,
    language_table,
    overall_table,
    part_table,
    sorted_points,
    spread_table,
    study_table,
)
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.evaluation.table import Cell, Table

RIGHT, HALF, NONE = [1] * 8, [1, 0] * 4, [0] * 8
TRIALS = [
    trial("LcRL", {"en": RIGHT, "fi": HALF}),
    trial("mSearch-R1", {"en": HALF, "fi": HALF}),
    trial("RAG", {"en": NONE, "fi": NONE}),
]
BOARD, MARKING = Scoreboard(TRIALS), Marking(against="mSearch-R1", threshold=0.05)


def cells(table):
    return {line[0].text: [(cell.text, cell.rank, cell.mark) for cell in line[1:]] for (section,) in [table.sections]
            for line in section}  # fmt: skip


def test_overall_is_over_the_languages_trained_on():
    table = overall_table([BOARD], "Overall", ["exact_match", "searches"], MARKING)
    assert table.header == ("", "EM", "searches") and table.spans == (("toy", 2),)
    assert cells(table) == {
        "LcRL": [("100.0", "best", "*"), ("3.50", "", "")],
        "mSearch-R1": [("50.0", "second", ""), ("3.50", "", "")],
        "RAG": [("0.0", "", "*"), ("3.50", "", "")],
    }


def test_by_language():
    table = language_table(BOARD, "EM by language", "exact_match", MARKING)
    assert table.header == ("", "en", "seen", "fi", "zero-shot", "all")
    assert table.spans == (("trained on", 2), ("zero-shot", 2), ("", 1))
    assert [text for text, _, _ in cells(table)["LcRL"]] == ["100.0", "100.0", "50.0", "50.0", "75.0"]
    assert [rank for _, rank, _ in cells(table)["mSearch-R1"]] == ["second", "second", "best", "best", "second"]
    assert "Zero-shot: fi." in table.note and "p < 0.05 against mSearch-R1" in table.note
    other = Scoreboard([*TRIALS, trial("LcRL, fi", {"en": RIGHT, "fi": HALF}, seen=("fi",))])
    assert "trained on different languages" in language_table(other, "", "exact_match", MARKING).note


def test_by_part_and_spread():
    table = part_table(BOARD, "EM by part", "exact_match", Marking())
    assert table.header == ("", "all", "seen", "zero-shot", "odd")
    assert [text for text, _, _ in cells(table)["mSearch-R1"]] == ["50.0", "50.0", "50.0", "0.0"]
    again = Scoreboard([*TRIALS, trial("LcRL", {"en": NONE, "fi": HALF}, run="LcRL, seed 1")])
    assert cells(spread_table(again, "", ["exact_match"]))["LcRL"] == [("2 / 2", "", ""), ("50.0 ±25.0", "", "")]


def test_models_are_blocks_with_ranks_of_their_own():
    board = Scoreboard([*TRIALS, trial("RAG", {"en": HALF, "fi": NONE}, model="large", run="other")])
    table = overall_table([board], "Overall", ["exact_match"], MARKING)
    assert table.section_titles == ("m", "large")
    assert [[line[1].rank for line in section] for section in table.sections] == [["best", "second", ""], [""]]
    assert table.sections[1][0][1].mark == "", "there is no mSearch-R1 of that model"


def test_a_system_without_results_has_a_dash():
    other = Scoreboard([trial("LcRL", {"en": RIGHT, "fi": HALF}, dataset="other")])
    table = overall_table([BOARD, other], "Overall", ["exact_match"], MARKING)
    assert [text for text, _, _ in cells(table)["RAG"]] == ["0.0", "–"]


def test_a_study_has_a_column_for_each_point():
    trials = [trial("LcRL", {"en": HALF, "fi": HALF}, point=point, run=str(point)) for point in (1.0, 0.25)]
    trials.append(trial("RAG", {"en": NONE, "fi": NONE}, point=1.0))
    table = study_table(Scoreboard(trials), "Study", "exact_match", "train.question_share", "all")
    assert table.header == ("", "0.25", "1")
    assert {name: [text for text, _, _ in line] for name, line in cells(table).items()} == {
        "LcRL": ["50.0", "50.0"],
        "RAG": ["–", "0.0"],
    }
    assert sorted_points(["b", 2.0, "a", 1.0, "b"]) == [1.0, 2.0, "b", "a"]


TABLE = overall_table([BOARD], "Overall & more", ["exact_match"], MARKING)


def test_markdown_and_terminal():
    markdown = to_markdown(TABLE)
    assert "| LcRL | **100.0**\\* |" in markdown and "| mSearch-R1 | <u>50.0</u> |" in markdown
    assert "\\* p < 0.05 against mSearch-R1" in markdown
    console = rich.console.Console(width=100, record=True, file=open("/dev/null", "w"))
    console.print(to_rich(TABLE))
    assert "100.0*" in console.export_text()


def test_latex_has_as_many_cells_in_every_line_and_escapes_what_it_must():
    table = language_table(BOARD, "EM by language, 100 % of {toy_set}", "exact_match", MARKING)
    text = to_latex(table)
    assert r"\textbf{100.0}$^{*}$" in text and r"\underline{75.0}" not in text and r"\underline{50.0}" in text
    assert r"\caption{EM by language, 100 \% of \{toy\_set\}.}" in text
    assert r"\multicolumn{2}{c}{trained on} & \multicolumn{2}{c}{zero-shot} & \multicolumn{1}{c}{}" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in text
    assert text.count(r"\begin{") == text.count(r"\end{") and text.count("{") == text.count("}")
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body.strip().splitlines()} == {5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a_b & 5 %", r"a\_b \& 5 \%"), ("\\^~", r"\textbackslash{}\textasciicircum{}\textasciitilde{}"), ("–", "--")],
)
def test_escapes(text, expected):
    assert escaped(text) == expected


def test_latex_of_a_table_with_blocks_and_tones():
    table = Table(
        title="T", header=("", "x"), section_titles=("one", "two"),
        sections=(((Cell("a"), Cell("+.1", "better")),), ((Cell("b"), Cell("–")),)),
    )  # fmt: skip
    text = to_latex(table)
    assert r"\multicolumn{2}{l}{\textit{two}} \\" in text and r"\textbf{+.1}" in text and text.count(r"\midrule") == 2
    assert "| _two_ |  |" in to_markdown(table)
