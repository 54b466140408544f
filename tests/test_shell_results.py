"""The tables of measurements in docs/ have the numbers that lcrag computes from docs/results."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from lcrag.commands.records import read_sources
from lcrag.evaluation.scoreboard import Scoreboard, scoreboards

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "results"
NUMBER = re.compile(r"([+-]?\d*\.?\d+)(?: ±(\d*\.\d+))?")
ALL, SEEN, ZERO_SHOT = ("", "all"), ("", "seen"), ("", "zero_shot")


class Column(NamedTuple):
    """What a column of a page's table shows of the systems of a row."""

    metric: str
    part: tuple[str, str] = ALL
    scale: float = 1  # 100: percent
    against: str = ""  # the system whose score is subtracted
    every: bool = False  # of all systems of the row, not of the last one only
    interval: bool = True


class Shown(NamedTuple):
    """A table of a page, whose rows are systems: a method, or a method before and after training."""

    page: str
    header: str  # how the table begins
    records: str
    decoding: str
    rows: Mapping[str, str | tuple[str, ...]]
    columns: Mapping[int, Column]  # by the number of the column
    paired_seeds: bool = False


def parts(metric: str, scale: float, *named: str, first: int = 1) -> dict[int, Column]:
    return {first + i: Column(metric, ALL if each == "all" else (each, "all"), scale) for i, each in enumerate(named)}


RECALL, EXACT = "c3_recall_bergen", "squad_exact_match"
SMOLLM2_COLUMNS = {
    2: Column("c3_recall", ALL, 100),
    **parts("c3_recall", 100, "native_holds", "native_missing", first=3),
    5: Column("exact_match", ALL, 100),
    7: Column("answer_shown", ALL, 100),
    8: Column("answered", ALL, 100),
}
LCRL_COLUMNS = {
    2: Column(RECALL, ALL, 100),
    3: Column(RECALL, ZERO_SHOT, 100),
    **parts(RECALL, 100, "native_holds", "native_missing", first=4),
    6: Column("searches", interval=False),
}
TABLES = (
    Shown(
        page="docs/methods/lcrl.md",
        header="| | seeds | all | zero-shot",
        records="lcrl_tables",
        decoding="greedy",
        rows={"LcRL w/o c3 recall": "LcRL w/o c3Recall"},
        columns=LCRL_COLUMNS,
    ),
    Shown(
        page="docs/methods/lcrl.md",
        header="| from long SFT | seeds |",
        records="lcrl_tables_long_sft",
        decoding="greedy",
        rows={},
        columns={2: Column(RECALL, ALL, 100), 3: Column(RECALL, ALL, 100, against="LcRL")},
    ),
    Shown(
        page="docs/methods/lcrl.md",
        header="| 740 demonstrated questions | seeds |",
        records="smollm2_gpu",
        decoding="greedy",
        rows={},
        columns=SMOLLM2_COLUMNS,
    ),
    Shown(
        page="docs/methods/lcrl.md",
        header="| eight languages | seeds |",
        records="gemma_xquad",
        decoding="greedy",
        rows={},
        columns={
            2: Column("c3_recall", ALL, 100),
            3: Column("c3_recall", ZERO_SHOT, 100),
            **parts("c3_recall", 100, "native_holds", "native_missing", first=4),
            **{6 + i: Column(metric, ALL, 100) for i, metric in enumerate(("c3_f", "exact_match", "token_f1"))},
            9: Column("correct_language", ALL, 100),
            10: Column("answer_shown", ALL, 100),
            11: Column("searches", interval=False),
            12: Column("answer_length", interval=False),
            13: Column("answered", ALL, 100),
        },
    ),
    Shown(
        page="docs/methods/rag_r1.md",
        header="| | seeds | all | comparisons",
        records="rag_r1",
        decoding="sampled",
        rows={
            "single query": "RAG-R1, single query",
            "w/o RL": "RAG-R1 w/o RL",
            "w/o selection": "RAG-R1 w/o selection",
            "w/o SFT": "RAG-R1 w/o SFT",
            "from long SFT": "RAG-R1 from long SFT",
        },
        columns={
            **parts(EXACT, 100, "all", "comparison", "conjunction", "two_hops", "three_hops", first=2),
            7: Column("retrieval_rounds", ("comparison", "all"), interval=False),
            8: Column("retrieval_rounds", ("conjunction", "all"), interval=False),
        },
        paired_seeds=True,
    ),
    Shown(
        page="docs/methods/globalrag.md",
        header="| | seeds | all | two hops",
        records="globalrag",
        decoding="greedy",
        rows={
            "GlobalRAG before training": "before training",
            "the answer's reward alone": "GlobalRAG, outcome only",
            "constant weights": "GlobalRAG, constant weights",
            "Search-R1 before training": "Search-R1, before training",
            "long SFT": "GlobalRAG from long SFT, before training",
            "from long SFT": "GlobalRAG from long SFT",
        },
        columns={
            **parts(EXACT, 100, "all", "two_hops", "three_hops", "four_hops", "comparison", first=2),
            7: Column("searches", interval=False),
            8: Column(EXACT, ALL, 100, against="GlobalRAG"),
        },
    ),
    Shown(
        page="docs/methods/r_search.md",
        header="| | seeds | F1, before → after",
        records="r_search",
        decoding="greedy",
        rows={
            "R-Search": ("before training", "R-Search"),
            "by PPO": ("before training", "R-Search with PPO"),
            "evidence not rewarded": ("before training", "R-Search, evidence not rewarded"),
            "answer rewarded only": ("before training", "R-Search, answer rewarded only"),
            "without evidence": ("R-Search w/o evidence, before training", "R-Search w/o evidence"),
            "Search-R1": ("R-Search w/o evidence, before training", "Search-R1"),
            "from long SFT": ("R-Search from long SFT, before training", "R-Search from long SFT"),
        },
        columns={
            2: Column("squad_f1", ALL, 100, every=True),
            3: Column("squad_f1", ALL, 100, against="R-Search"),
            5: Column("searches", every=True, interval=False),
            6: Column("answered", ALL, 100, interval=False),
        },
    ),
    Shown(
        page="docs/methods/translate_r1.md",
        header="| | seeds | reward: all",
        records="translate_r1",
        decoding="sampled",
        rows={
            "before": "before training",
            "no tool": "No tool",
            "free": "Free tool",
            "flat cost": "Flat cost",
            "group-relative, ungated": "Ungated",
            "group-relative, gated at six": "Gated",
            "group-relative, gated at two": "Gated at two",
            "long SFT": "Gated from long SFT, before training",
            "gated at six, from long SFT": "Gated from long SFT",
        },
        columns={
            **parts("reward", 1, "all", "known", "constructed", first=2),
            **parts("tool_rate", 1, "known", "constructed", first=5),
        },
    ),
)


@functools.cache
def board_of(records: str, decoding: str, paired_seeds: bool = False, also: tuple[str, ...] = ()) -> Scoreboard:
    trials = [trial for source in read_sources([str(RECORDS / records)], also) for trial in source.trials]
    return scoreboards(trials, paired_seeds)[trials[0].dataset, trials[0].split, decoding]


def table_of(page: str, header: str) -> list[list[str]]:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def check_cell(cell: str, expected: Sequence[tuple[float, float]], scale: float, interval: bool) -> None:
    """Checks that a cell shows values, each with half of its interval, rounded to the digits shown."""
    shown = NUMBER.findall(cell.replace(",", ""))
    assert len(shown) == len(expected), f"{cell!r} has not {len(expected)} numbers"
    for (value, half), (mean, width) in zip(shown, expected, strict=True):
        unit = 0.501 * 10 ** -len(value.partition(".")[2])
        assert float(value) == pytest.approx(scale * mean, abs=unit), cell
        varies = interval and not math.isnan(width) and float(value) != 0
        if half or varies:
            assert half and float(half) == pytest.approx(scale * width, abs=unit), cell


@pytest.mark.parametrize("shown", TABLES, ids=[each.records for each in TABLES])
def test_methods_have_the_scores_of_their_records(shown):
    board = board_of(shown.records, shown.decoding, shown.paired_seeds)
    systems = {system[1]: system for system in board.systems}
    checked = set()
    for name, *cells in table_of(shown.page, shown.header):
        if name.startswith("rules"):
            continue
        methods = shown.rows.get(name, name)
        row = (methods,) if isinstance(methods, str) else methods
        checked |= set(row)
        runs = board.score(systems[row[-1]], next(iter(shown.columns.values())).metric, ALL).runs
        assert cells[0] == str(runs) or (cells[0] == "" and runs == 1), f"{name} has {runs} seeds"
        for number, column in shown.columns.items():
            chosen = [systems[each] for each in (row if column.every else row[-1:])]
            cell = cells[number - 1]
            if cell == "" and (column.against == row[-1] or name == "no tool"):
                continue
            if column.against:
                found = [board.difference(chosen[0], systems[column.against], column.metric, column.part)]
            else:
                found = [board.score(each, column.metric, column.part) for each in chosen]
            check_cell(cell, [(each.value, each.half) for each in found], column.scale, column.interval)
    assert checked == set(systems), "the table does not show every method that has a record"


# Tables whose columns are points of a study: how they begin; the study, the methods of the rows and the points of the
# columns ("whole": the runs of `lcrl_tables`).
STEMS = {"LcRL": "lcrl", "mSearch-R1": "msearch_r1", "SFT": "sft", "D-RAG": "d_rag", "RAG": "rag"}
TRAINED = ("LcRL", "mSearch-R1", "SFT", "D-RAG")
OPTIONS = ("english", "native", "native_english", "native_english_high", "all")
POINTS = {
    "| collections | 1 |": ("collections", ("LcRL", "D-RAG", "RAG"), ("1", "2", "3", "5", "8", "13")),
    "| | English | native |": ("retrieval", ("LcRL", "RAG"), OPTIONS),
    "| training questions |": ("data", TRAINED, ("25", "50", "75", "whole")),
    "| training languages |": ("training_languages", TRAINED, ("1", "2", "4", "whole")),
}


@pytest.mark.parametrize("header", POINTS)
def test_points_have_the_scores_of_their_records(header):
    study, methods, points = POINTS[header]
    rows = table_of("docs/methods/lcrl.md", header)
    assert {row[0] for row in rows} == set(methods)
    for name, *cells in rows:
        for cell, point in zip(cells, points, strict=True):
            folder, stem = f"lcrl_{study}", f"{STEMS[name]}-{study}_{point}"
            if point == "whole":
                folder, stem = "lcrl_tables", STEMS[name]
            sources = (
                each for each in read_sources([str(RECORDS / folder)]) if each.place.stem.rpartition("-")[0] == stem
            )
            board = Scoreboard([trial for source in sources for trial in source.trials])
            score = board.score(board.systems[0], RECALL, ALL)
            check_cell(cell, [(score.value, score.half)], 100, interval=True)


QUICKSTART = {  # part of each row
    "all languages": ALL,
    "searches": ALL,
    "the eight training languages": SEEN,
    "the five zero-shot languages": ZERO_SHOT,
    "facts that the native collection lacks": ("native_missing", "all"),
    "facts that the native collection holds": ("native_holds", "all"),
}


def test_the_quickstart_has_the_scores_of_its_records():
    columns = ("before", "LcRL", "LcRL - before", "long SFT", "LcRL - long SFT")
    for name, *cells in table_of("docs/methods/lcrl.md", "| | before: the initial policy"):
        board = board_of("quickstart", "sampled" if "sampled" in name else "greedy", also=("before", "long SFT"))
        metric = "searches" if name == "searches" else RECALL
        part = QUICKSTART[re.sub(r"sampled, |, sampled.*| \(\d+\)", "", name)]
        systems = {system[1]: system for system in board.systems}
        for column, cell in zip(columns, cells, strict=True):
            first, _, other = column.partition(" - ")
            if other:
                found = board.difference(systems[first], systems[other], metric, part)
            else:
                found = board.score(systems[first], metric, part)
            check_cell(cell, [(found.value, found.half)], 1, interval=True)
