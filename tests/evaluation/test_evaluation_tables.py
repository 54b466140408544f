"""Tables of single runs and of papers: their lines, columns, ranks and marks, and their three output formats."""

import dataclasses
import math
import re

import numpy as np
import pytest
import rich.console
import scipy.stats
from evaluation_trials import asked, trial

from lcrag.evaluation import (
    Cell,
    Row,
    Table,
    comparison_table,
    evaluate,
    method_table,
    paired_difference,
    place_tables,
    to_latex,
    to_markdown,
    to_rich,
)
from lcrag.evaluation.paper_tables import (
    Marking,
    difference_table,
    language_table,
    overall_table,
    part_table,
    runs_table,
    study_points,
    study_table,
)
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.evaluation.tables import escaped
from lcrag.evaluation.training_log import rewards_table

RIGHT, HALF, NONE = [1] * 8, [1, 0] * 4, [0] * 8
TRIALS = [
    trial("LcRL", {"en": RIGHT, "fi": HALF}),
    trial("mSearch-R1", {"en": HALF, "fi": HALF}),
    trial("RAG", {"en": NONE, "fi": NONE}),
]
BOARD, MARKING = Scoreboard(TRIALS), Marking(against="mSearch-R1", threshold=0.05)


def texts(table):
    return [[[cell.text for cell in line] for line in section] for section in table.sections]


def cells(table):
    return {line[0].text: [(cell.text, cell.rank, cell.mark) for cell in line[1:]] for line in table.sections[0]}


def test_overall_is_over_the_languages_trained_on():
    table = overall_table([BOARD], "Overall", ["exact_match", "searches"], MARKING)
    assert table.header == ("", "EM", "searches")
    assert table.spans == (("toy", 2),)
    assert cells(table) == {
        "LcRL": [("100.0", "best", "*"), ("3.50 ±2.05", "", "")],
        "mSearch-R1": [("50.0 ±44.7", "second", ""), ("3.50 ±2.05", "", "")],
        "RAG": [("0.0", "", "*"), ("3.50 ±2.05", "", "")],
    }, "no interval where nothing varies"
    assert (
        "±: half of the 95 % interval over questions and training runs. Of one run: over questions only." in table.note
    )


def test_the_correct_language_rate_has_its_count():
    """A right answer is in the right language; "Oslo" is too short to judge."""
    table = overall_table([BOARD], "Overall", ["correct_language"], Marking())
    assert texts(table) == [[["LcRL", "100.0 (8)"], ["mSearch-R1", "100.0 (4)"], ["RAG", "– (0)"]]]
    assert "In brackets: answers whose language could be judged." in table.note
    spread = runs_table(BOARD, "Runs", ["correct_language"])
    assert texts(spread)[0][0][-1] == "100.0 (12)"


def test_by_language():
    table = language_table(BOARD, "EM by language", "exact_match", MARKING)
    assert table.header == ("", "en", "seen", "fi", "zero-shot", "all")
    assert table.spans == (("trained on", 2), ("zero-shot", 2), ("", 1))
    assert [text for text, _, _ in cells(table)["LcRL"]] == ["100.0", "100.0", "50.0 ±44.7", "50.0 ±44.7", "75.0 ±22.3"]
    assert [rank for _, rank, _ in cells(table)["mSearch-R1"]] == ["second", "second", "best", "best", "second"]
    assert "Zero-shot: fi." in table.note
    assert "p < 0.05 against mSearch-R1" in table.note
    other = Scoreboard([*TRIALS, trial("LcRL, fi", {"en": RIGHT, "fi": HALF}, seen=("fi",))])
    assert "trained on different languages" in language_table(other, "", "exact_match", MARKING).note


def test_by_part_and_number_of_runs():
    table = part_table(BOARD, "EM by part", "exact_match", Marking())
    assert table.header == ("", "all", "seen", "zero-shot", "odd")
    assert [text for text, _, _ in cells(table)["mSearch-R1"]] == ["50.0 ±44.7", "50.0 ±44.7", "50.0 ±44.7", "0.0"]
    again = Scoreboard([*TRIALS, trial("LcRL", {"en": NONE, "fi": HALF}, run="LcRL, seed 1")])
    runs, (text, *_) = cells(runs_table(again, "", ["exact_match"]))["LcRL"]
    assert runs[0] == "2 / 2"
    assert text.startswith("50.0 ±")


def test_parts_that_are_empty_or_repeat_the_whole_are_left_out():
    board = Scoreboard([trial(name, {"en": RIGHT, "fi": HALF}, seen=("en", "fi")) for name in ("LcRL", "mSearch-R1")])
    assert part_table(board, "EM by part", "exact_match", MARKING).header == ("", "all", "odd")
    assert "2 tests" in difference_table(board, "", "exact_match", MARKING).note


def test_differences_are_corrected_for_the_number_of_tests():
    better = [1, 1, 0, 0, 0, 0, 0, 0]
    board = Scoreboard([trial(name, {"en": right, "fi": HALF}) for name, right in (("a", better), ("b", NONE))])
    table = difference_table(board, "", "exact_match", Marking(against="b", threshold=0.5))
    assert table.header == ("", "all", "seen", "zero-shot", "odd")
    expected = scipy.stats.ttest_1samp(np.array(better) / 2, 0)
    half = expected.confidence_interval().high - 0.125
    assert texts(table) == [
        [["a", f"+12.5 ±{100 * half:.1f} (p .682)", "+25.0 ±38.7 (p .682)", "+0.0 (p 1)", "+12.5 ±39.8 (p .782)"]]
    ]
    assert 4 * expected.pvalue == pytest.approx(0.682, abs=5e-4)
    assert "corrected for the 4 tests of this table (Holm)" in table.note
    assert [cell.tone for cell in table.sections[0][0]] == [""] * 5
    marked = difference_table(board, "", "exact_match", Marking(against="b", threshold=0.7))
    assert [cell.tone for cell in marked.sections[0][0]] == ["", "better", "better", "", ""]
    assert difference_table(board, "", "exact_match", Marking()) is None


def test_models_are_sections_with_ranks_of_their_own():
    board = Scoreboard([*TRIALS, trial("RAG", {"en": HALF, "fi": NONE}, model="large", run="other")])
    table = overall_table([board], "Overall", ["exact_match"], MARKING)
    assert table.section_titles == ("m", "large")
    assert [[line[1].rank for line in section] for section in table.sections] == [["best", "second", ""], [""]]
    assert table.sections[1][0][1].mark == "", "there is no mSearch-R1 of that model"
    other = Scoreboard([trial("LcRL", {"en": RIGHT, "fi": HALF}, dataset="other")])
    table = overall_table([BOARD, other], "Overall", ["exact_match"], MARKING)
    assert [text for text, _, _ in cells(table)["RAG"]] == ["0.0", "–"], "no result on that data set"


def test_a_study_has_a_column_for_each_point():
    trials = [trial("LcRL", {"en": HALF, "fi": HALF}, point=point, run=str(point)) for point in ("b", 1.0, 0.25)]
    board = Scoreboard([*trials, trial("RAG", {"en": NONE, "fi": NONE}, point=1.0)])
    assert study_points(board) == [0.25, 1.0, "b"]
    table = study_table(board, "Study", "exact_match", "train.question_share", "all")
    assert table.header == ("", "0.25", "1", "b")
    assert texts(table) == [[["LcRL", *["50.0 ±44.7"] * 3], ["RAG", "–", "0.0", "–"]]]


METRICS = ("exact_match", "correct_language", "searches")
RUN = dict(method="LcRL, greedy", model="tiny", split="held_out")


def rows(questions, *, seed=0, seen=("en",)):
    return evaluate(questions, seed=seed, seen_languages=seen, **RUN)


def year(number, language="en", answer="1999", **fields):
    return asked(number, language, answer, ("1999",), searches=2, **fields)


TWO_LANGUAGES = [year(0, subsets=("two_hops",)), year(1, answer="2000"), year(0, "fi"), year(1, "fi")]


def test_places_are_groups_languages_and_subsets():
    found = rows(TWO_LANGUAGES)
    whole = next(row for row in found if row.metric == "searches" and row.language == "all")
    timed = dataclasses.replace(whole, metric="seconds_per_question", value=0.25, standard_error=math.nan)
    [table] = place_tables([*found, timed], METRICS)
    assert table.title == "LcRL, greedy: toy, held_out"
    assert table.header == ("", "answers", "EM", "correct language", "searches")
    assert table.note == (
        "±: half of the 95 % interval over questions. In brackets: answers whose language could be judged."
        " 0.250 seconds a question."
    )
    groups, languages, subsets = texts(table)
    assert [line[0] for line in groups] == ["all languages", "trained on", "zero-shot"]
    assert groups[0][1:] == ["4", ".750 ±.490", "– (0)", "2.00 ±.000"], "no answer has an identifiable language"
    assert [line[:2] for line in languages] == [["en", "2"], ["fi", "2"]]
    assert subsets[0][:3] == ["two hops", "1", "1.00"], "a single question has no error"
    [alone] = place_tables(rows([year(number) for number in range(3)]), METRICS)
    assert [[line[0] for line in section] for section in texts(alone)] == [["all languages"]], "no repeats"


def test_every_data_set_has_a_table_and_inference_runs_are_averaged():
    questions = [year(n, answer="1999" if n > 1 else "2000", dataset=name) for name in ("nq", "pop") for n in range(4)]
    again = [dataclasses.replace(each, answer="1999" if each.question_id < "2" else "2000") for each in questions]
    first, second = place_tables([*rows(questions), *rows(again, seed="0, run 2")], ["exact_match"])
    assert [table.title.partition(": ")[2] for table in (first, second)] == ["nq, held_out", "pop, held_out"]
    assert texts(first)[0][0][1:] == ["8", ".500 ±.566"], "the questions of both runs are the same"


PLACES = [[("held_out", "all"), ("held_out", "fr")], [("held_out/native_missing", "all")]]


def row(method, value, language="all", metric="c3_recall"):
    return Row(
        method=method, model="tiny", dataset="atlas", split="held_out", language=language, metric=metric,
        value=value, count=500, seed=0, standard_error=0.02,
    )  # fmt: skip


ROWS = [
    row("cold start", 0.3),
    row("LcRL", 0.5),
    row("long SFT", 0.45),
    row("cold start", 0.3, "fr"),
    row("LcRL", 0.31, "fr"),
    row("cold start", 1.1, metric="searches"),
    row("LcRL", 1.6, metric="searches"),
]
SIDES = {"before": "cold start", "after": "LcRL", "references": ["long SFT"]}


def test_before_after_and_reference_in_one_table():
    table = comparison_table(ROWS, "Held out", PLACES, ["c3_recall", "searches"], **SIDES)
    assert texts(table) == [
        [
            ["all languages", ".300 → .500", "+.200 ±.055", ".450 ±.039", "1.10 → 1.60"],
            ["fr", ".300 → .310", "+.010 ±.055", "–", "–"],
        ]
    ], "a place without rows is left out"
    assert [line[2].tone for line in table.sections[0]] == ["better", "level"]
    differences = {(("held_out", "all"), "c3_recall"): paired_difference([0.0, 0.1, 0.2], [1.0, 1.0, 1.0])}
    table = comparison_table(ROWS, "", PLACES, ["c3_recall"], differences=differences, **SIDES)
    assert table.sections[0][0][2] == Cell("-.900 ±.248", "worse"), "paired differences are preferred"


def printed(table):
    console = rich.console.Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))
    console.print(to_rich(table))
    return console.export_text()


def test_terminal_and_markdown_have_the_same_content():
    methods = ["cold start", "LcRL", "none"]
    table = method_table(ROWS, "Methods", methods, ["c3_recall", "searches"], ("held_out", "all"))
    for text in (printed(table), to_markdown(table)):
        assert all(cell in text for cell in (".500 ±.039", "1.60 ±.039", "500 answers", "–"))
    assert to_markdown(table).splitlines()[2:4] == ["|  | c3 recall | searches |", "| --- | ---: | ---: |"]


def test_ranks_and_marks_in_the_terminal_and_in_markdown():
    table = overall_table([BOARD], "Overall", ["exact_match"], MARKING)
    markdown = to_markdown(table)
    assert "| LcRL | **100.0**\\* |" in markdown
    assert "| mSearch-R1 | <u>50.0 ±44.7</u> |" in markdown
    assert "\\* p < 0.05 against mSearch-R1" in markdown
    assert "100.0*" in printed(table)


def test_latex_has_as_many_cells_in_every_line_and_escapes_what_it_must():
    text = to_latex(language_table(BOARD, "EM by language, 100 % of {toy_set}", "exact_match", MARKING))
    assert r"\textbf{100.0}$^{*}$" in text
    assert r"\underline{50.0 $\pm$44.7}" in text
    assert r"\caption{EM by language, 100 \% of \{toy\_set\}.}" in text
    assert r"\multicolumn{2}{c}{trained on} & \multicolumn{2}{c}{zero-shot} & \multicolumn{1}{c}{}" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in text
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert text.count("{") == text.count("}")
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body.strip().splitlines()} == {5}
    assert escaped("a_b & 5 % \\^~–") == r"a\_b \& 5 \% \textbackslash{}\textasciicircum{}\textasciitilde{}--"
    sections = (((Cell("a"), Cell("+.1", "better")),), ((Cell("b"), Cell("–")),))
    table = Table(title="T", header=("", "x"), section_titles=("one", "two"), sections=sections)
    text = to_latex(table)
    assert r"\multicolumn{2}{l}{\textit{two}} \\" in text
    assert r"\textbf{+.1}" in text
    assert "| _two_ |  |" in to_markdown(table)


def test_rewards_in_training_are_tabulated_by_term():
    def log(**values):
        return {f"reward/{name}": (np.arange(len(own)), np.array(own, float)) for name, own in values.items()}

    two_runs = [log(total=[0, 9, 9, 9, 1], f1=[0, 0, 1, 1, 1]), log(total=[2, 2, 9, 9, 9, 3, 3], f1=[0] * 7)]
    table = rewards_table({"one": two_runs, "other": [log(total=[1.0])], "evaluated": [{}]})
    assert table.header == ("", "total", "f1")
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.sections[0]}
    assert cells == {"one": ["3.250 → 4.000", "0.000 → 0.500"], "other": ["1.000 → 1.000", "–"]}
    assert rewards_table({"evaluated": [{"loss/policy": (np.arange(2), np.ones(2))}]}) is None
