"""Calls of other programs, and the settings that kinds of clusters share."""

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lcrag.app.commands.launch.hosts import Settings
from lcrag.errors import UserError


def run_settings(settings: Mapping[str, str]) -> Settings:
    """How a job on hosts is run."""
    return Settings(
        logs=Path(settings["--logs"]),
        restarts=int(settings["--restarts"]),
        pause_seconds=float(settings["--pause_seconds"]),
        grace_seconds=float(settings["--grace_seconds"]),
    )


def call(words: list[str], hint: str) -> str:
    """Runs a command and returns its output, which is also shown.

    Raises:
      UserError: it is not installed, or failed.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"there is no command {words[0]}: {hint}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise UserError(f"{shlex.join(words[:5])} ... failed: {said}")
    if done.stdout.strip():
        print(done.stdout.strip(), flush=True)
    return done.stdout
