"""`launch/translate_and_search.sh` makes both cold starts once, trains every seed from its own, and then reports."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from lcrag import main
from lcrag.cli.arguments import split_arguments
from lcrag.cli.gin_files import read_bindings

ROOT = Path(__file__).resolve().parents[2]
# Writes down how it was called, and leaves what the real command leaves when it is done.
PRETENDED = """#!/usr/bin/env bash
echo "$(printf '%q ' "$@")" >>calls
for word in "$@"; do
  case $word in --output_dir=*) mkdir -p "${word#*=}"; touch "${word#*=}/report.md" ;; esac
done
"""


def calls_of(folder, **settings):
    command = ["bash", str(folder / "launch" / "translate_and_search.sh"), "--gin.STEPS=3"]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (folder / "calls").read_text().splitlines()
    (folder / "calls").unlink()
    return [split_arguments(shlex.split(line), main.special_options()) for line in lines]


def test_both_variants_begin_with_their_own_cold_start(tmp_path):
    (tmp_path / "launch").mkdir()
    for name in ("translate_and_search.sh", "jobs.sh"):
        shutil.copy(ROOT / "launch" / name, tmp_path / "launch")
    (tmp_path / "launch" / "environment.sh").write_text("prepare_environment() { :; }\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "lcrag").write_text(PRETENDED)
    (tmp_path / ".venv" / "bin" / "lcrag").chmod(0o755)

    *cold, first, second, third, fourth, report = calls_of(tmp_path, SEEDS="0 1", OUTPUT="out")
    assert [call.command for call in cold] == ["sft"] * 2 and report.words == ("out/study",)
    for call, folder, without in zip(
        (first, second, third, fourth), ["out/cold-start", "out/cold-start-without"] * 2, [False, True] * 2, strict=True
    ):
        values = {each.key: each.value for each in read_bindings(call.bindings)}
        assert call.command == "train" and values["policy.folder"] == f"{folder}/policy" and values["STEPS"] == 3
        assert ("ablation/no_translation.gin" in call.gin_files) is without
    assert [call.command for call in calls_of(tmp_path, SEEDS="0 1", OUTPUT="out")] == ["report"]
