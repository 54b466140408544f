"""Runs a script of launch/ with a pretended `lcrag`, and reads back how it was called."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lcrag import main
from lcrag.app.cli.arguments import Arguments, split_arguments
from lcrag.app.composition.gin_files import read_bindings

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
# Writes down how it was called, and leaves what the real command leaves when it is done.
PRETENDED = """#!/usr/bin/env bash
echo "$(printf '%q ' "$@")" >>calls
case "$*" in *--output_dir=*"${FAILS:-nothing}"*) echo failed >&2; exit 2 ;; esac
for word in "$@"; do
  case $word in --output_dir=*) mkdir -p "${word#*=}"; touch "${word#*=}"/{report.{md,json},evaluation.json} ;; esac
done
"""
Script = Callable[..., tuple[subprocess.CompletedProcess, list[Arguments]]]


def launched(name: str, folder: Path) -> Script:
    """The script, copied into a folder of its own: (words, settings of the environment) -> (what came of it, calls).

    A call whose output folder holds the setting FAILS fails.
    """
    shutil.copytree(LAUNCH, folder / "launch")
    (folder / "launch" / "environment.sh").write_text("prepare_environment() { :; }\n")
    command = folder / ".venv" / "bin" / "lcrag"
    command.parent.mkdir(parents=True)
    command.write_text(PRETENDED)
    command.chmod(0o755)

    def runs(*words, **settings):
        line = ["bash", str(folder / "launch" / name), *words]
        done = subprocess.run(line, env={**os.environ, **settings}, capture_output=True, text=True)
        calls = folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return done, [split_arguments(shlex.split(line), main.special_options()) for line in lines]

    return runs


def bound(call: Arguments) -> dict[str, object]:
    """What a call binds by --gin."""
    return {each.key: each.value for each in read_bindings(call.bindings)}
