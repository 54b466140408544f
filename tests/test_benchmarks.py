"""The benchmark of a GPU runs on CPUs at tiny sizes, and its two sides compute the same."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def test_every_stage_reports_rows_and_both_sides_agree(tmp_path):
    words = [sys.executable, SCRIPT, "--tiny", f"--rows={tmp_path / 'rows.jsonl'}"]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["stage"] for row in rows} == {"parity", "sampler", "rollouts", "update", "step"}
    assert all({"card", "date", "jax", "torch"} <= row.keys() for row in rows)
    exact = next(row for row in rows if "float32, compared" in row["work"])
    assert exact["equal_until"] == 1 and exact["sampling_training_gap"] < 1e-4
    [compared] = [row for row in rows if row["side"] == "both"]
    assert compared["lcrag, dots"] == pytest.approx(compared["PyTorch"], rel=1e-3)
    for stage in ("sampler", "rollouts", "update"):
        sides = {row["side"].split(",")[0] for row in rows if row["stage"] == stage}
        assert {"lcrag"} < sides
