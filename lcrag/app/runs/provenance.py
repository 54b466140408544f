"""What a result depends on beside its configuration: code, packages, devices, command."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("lcrag", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scann", "tensorflow", "seqio",
            "gin-config", "babel", "transformers", "tokenizers")  # fmt: skip


def provenance(*, seed: int, hashes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The content of `run.json`.

    Args:
      seed: The run's seed.
      hashes: Content hash of each data set and index by name.
    """
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["lcrag", *sys.argv[1:]],
        "seed": seed,
        "commit": git_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "packages": package_versions(),
        "devices": devices(),
        "processor_count": _processor_count(),
        "hashes": dict(hashes or {}),
    }


def git_commit(folder: Path) -> str | None:
    """The commit that `folder` is at, with `+changes` when tracked files differ; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def package_versions() -> dict[str, str]:
    """Version of each package that results depend on, if installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def devices() -> list[str]:
    """Kind of every device of the run, as JAX names it."""
    import jax  # the run folder itself is read without JAX

    return [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]


def _processor_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
