"""The training log, its figure and the report of one run."""

import json

import numpy as np
import pytest

from lcrag.errors import UserError
from lcrag.evaluation import Cell, Table, read_training_log, step_size
from lcrag.evaluation.plots import write_report

REPORT = dict(
    title="LcRL on the atlas", summary="One run.", command="lcrag train --gin_file=a.gin", reading="It is small.",
    versions={"commit": "abc123", "jax": "0.10.2"},
    tables=[Table(title="Held out", header=("", "EM"), sections=(((Cell("long SFT"), Cell(".5")),),))],
)  # fmt: skip


def test_report_with_its_figure(tmp_path):
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step, reward in enumerate(np.linspace(0.3, 0.7, 40)):
            terms = {"reward/total": reward, "reward/c3_recall": reward + 0.004, "reward/anti_consistency": reward - 1}
            file.write(json.dumps({"step": step, **terms, "episode/searches": 1 + reward, "loss/kl": 0.1}) + "\n")
    text = write_report(tmp_path, curves=read_training_log(tmp_path / "metrics.jsonl"), **REPORT).read_text()
    for part in ("# LcRL on the atlas", "training.png", "lcrag train", "commit: abc123", "It is small.", "long SFT"):
        assert part in text
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


def test_a_log_without_rewards_has_no_figure(tmp_path):
    with pytest.raises(UserError, match="reward/total"):
        write_report(tmp_path, curves={"loss": (np.arange(2), np.ones(2))}, **REPORT)


def test_a_resumed_run_counts_its_later_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 5}\n\n{"step": 2, "a": 2, "b": null}\n')
    steps, values = read_training_log(path)["a"]
    assert (steps.tolist(), values.tolist()) == ([1, 2], [1, 2])


@pytest.mark.parametrize("line", ['{"step": 1, "a"', '{"step": "1"}', '{"step": 1, "a": "x"}', "\udcff"])
def test_a_malformed_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "a": 1}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2") as raised:
        read_training_log(path)
    assert "\n" not in str(raised.value)


def test_a_report_states_the_prompts_and_episodes_of_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "step/prompts": 48, "step/episodes": 96}\n{"step": 1, "a": 1.0}\n')
    assert step_size(read_training_log(path)) == "96 episodes of 48 prompts a step"
    path.write_text('{"step": 0, "a": 1.0}\n')
    assert step_size(read_training_log(path)) == ""
