"""Provenance of a result in addition to its configuration: code, packages, devices and command."""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lcrag.errors import without_secrets

PACKAGES = ("lcrag", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scann", "tensorflow", "seqio",
            "gin-config", "babel", "transformers", "tokenizers")  # fmt: skip


def provenance(*, seed: int, hashes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the content of `run.json`.

    Args:
      seed: The run's seed.
      hashes: Content hash of each data set and index by name.
    """
    import jax  # imported here, because run folders are also read without JAX

    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["lcrag", *map(without_secrets, sys.argv[1:])],
        "seed": seed,
        "commit": _git_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "packages": dict(_package_versions()),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "processor_count": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "hashes": dict(hashes or {}),
    }


def _git_commit(folder: Path) -> str | None:
    """Returns the commit of a folder, with `+changes` if tracked files differ; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    return f"{commit}+changes" if commit and _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _package_versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
