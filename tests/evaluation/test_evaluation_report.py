"""Tables, the training log, the figure and the report."""

import json

import numpy as np
import pytest
import rich.console

from lcrag.errors import UserError
from lcrag.evaluation import (
    Comparison,
    Report,
    Row,
    comparison_table,
    method_table,
    paired_difference,
    read_training_log,
    to_markdown,
    to_rich,
    write_report,
)
from lcrag.evaluation.plots import smoothed

PLACES = [[("held_out", "all"), ("held_out", "fr")], [("held_out/native_missing", "all")]]


def row(method, value, language="all", split="held_out", metric="c3_recall", error=0.02):
    return Row(
        method=method, model="tiny", dataset="atlas", split=split, language=language, metric=metric,
        value=value, count=500, seed=0, standard_error=error,
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


def comparison(**options):
    return Comparison(rows=ROWS, before="cold start", after="LcRL", references=("long SFT",), **options)


def test_before_after_and_reference_in_one_table():
    table = comparison_table(comparison(), "Held out", PLACES, ["c3_recall", "searches"])
    everything, french = table.sections[0]
    assert [cell.text for cell in everything] == [
        "all languages", ".300 → .500", "+.200 ±.028", ".450 ±.020", "1.10 → 1.60",
    ]  # fmt: skip
    assert [everything[2].tone, french[2].tone] == ["better", "level"]
    assert len(table.sections) == 1, "a place without rows is left out"


def test_paired_differences_are_preferred():
    differences = {(("held_out", "all"), "c3_recall"): paired_difference([0.0, 0.1, 0.2], [1.0, 1.0, 1.0])}
    cell = comparison_table(comparison(differences=differences), "", PLACES, ["c3_recall"]).sections[0][0][2]
    assert (cell.text, cell.tone) == ("-.900 ±.058", "worse")


def test_terminal_and_markdown_say_the_same():
    table = method_table(
        ROWS, "Methods", ["cold start", "LcRL", "none"], ["c3_recall", "searches"], ("held_out", "all")
    )
    console = rich.console.Console(width=120, record=True, file=open("/dev/null", "w"))
    console.print(to_rich(table))
    printed, markdown = console.export_text(), to_markdown(table)
    for cell in (".500 ±.020", "1.60 ±.020", "500 answers", "–"):
        assert cell in printed and cell in markdown
    assert markdown.splitlines()[2:4] == ["|  | c3 recall | searches |", "| --- | ---: | ---: |"]


def write_log(path, steps=40):
    generator = np.random.default_rng(0)
    rise = 0.3 + 0.4 * (1 - np.exp(-np.arange(steps) / 20))
    with path.open("w") as file:
        for step in range(steps):
            reward = float(np.clip(rise[step] + 0.05 * generator.standard_normal(), 0, 1))
            entry = {
                "reward/total": reward,
                "reward/c3_recall": reward + 0.004,
                "reward/anti_consistency": -0.2 * (1 - reward),
            }
            file.write(json.dumps({"step": step, **entry, "episode/searches": 1 + reward, "loss/kl": 0.1}) + "\n")


def test_report_with_its_figure(tmp_path):
    write_log(tmp_path / "metrics.jsonl")
    curves = read_training_log(tmp_path / "metrics.jsonl")
    report = Report(
        title="LcRL on the atlas", summary="One run.", command="lcrag train --gin_file=a.gin", commit="abc123",
        versions={"jax": "0.10.2"}, reading="It is small.", curves=curves,
        tables=(comparison_table(comparison(), "Held out", PLACES, ["c3_recall"]),),
    )  # fmt: skip
    text = write_report(tmp_path, report).read_text()
    for part in (
        "# LcRL on the atlas",
        "training.png",
        "lcrag train",
        "abc123",
        "jax: 0.10.2",
        "It is small.",
        "long SFT",
    ):
        assert part in text
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


def test_a_log_without_rewards_has_no_curve(tmp_path):
    report = Report(
        title="t",
        summary="",
        command="",
        commit="",
        versions={},
        reading="",
        tables=(),
        curves={"loss": (np.arange(2), np.ones(2))},
    )
    with pytest.raises(UserError, match="reward/total"):
        write_report(tmp_path, report)


def test_a_resumed_run_counts_its_later_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 5}\n\n{"step": 2, "a": 2, "b": NaN}\n')
    steps, values = read_training_log(path)["a"]
    assert (steps.tolist(), values.tolist()) == ([1, 2], [1, 2])


@pytest.mark.parametrize(
    "line", ['{"step": 1, "a"', "[1]", '{"a": 1}', '{"step": "1"}', '{"step": 1, "a": "x"}', "\udcff"]
)
def test_a_malformed_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "a": 1}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2") as raised:
        read_training_log(path)
    assert "\n" not in str(raised.value)


def test_smoothing_keeps_a_straight_line_and_the_length():
    line = np.arange(40.0)
    assert np.allclose(smoothed(line)[2:-2], line[2:-2])
    assert smoothed(np.array([1.0])).tolist() == [1.0]
