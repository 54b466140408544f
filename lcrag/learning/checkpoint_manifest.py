"""Digests of a checkpoint's files, which detect damage before anything is restored."""

import hashlib
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from etils import epath

AnyPath: TypeAlias = Path | epath.Path
MANIFEST = "manifest.json"
MARK = {"manifest": MANIFEST}  # in Orbax's metadata of each checkpoint that has a manifest
METADATA, COMMITTED = "_CHECKPOINT_METADATA", "commit_success.txt"  # Orbax completes both after the manifest
COMMIT_TIME = "commit_timestamp_nsecs"
SETTLED_SECONDS = 60.0
THREADS = 8


def write_manifest(folder: AnyPath, loss: float | None, *, digests: bool = True) -> None:
    """Write the digests of all files of a complete, not yet committed checkpoint, and its validation loss.

    Without `digests`, write only the loss.

    Raises:
      TimeoutError: Orbax's metadata did not become complete.
    """
    _wait_for_metadata(folder / METADATA)
    paths = folder.rglob("*") if digests else ()
    names = sorted(str(path.relative_to(folder)) for path in paths if path.is_file())
    with ThreadPoolExecutor(THREADS) as threads:
        found = threads.map(lambda name: _digest(folder / name), names)
        content = {"loss": loss, "files": dict(zip(names, found, strict=True))}
    (folder / MANIFEST).write_text(json.dumps(content | {"digest": _of(content)}), encoding="utf-8")


def damage(folder: AnyPath) -> str | None:
    """Return a clause that names the first damaged file of a checkpoint; None if all are unchanged.

    Also None for a checkpoint of an earlier version of this package, which has no manifest.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["digest"] != _of({name: manifest[name] for name in ("loss", "files")}):
            return f"{MANIFEST} is not as it was saved"
    except FileNotFoundError:
        if _is_marked(folder / METADATA) is False:
            return None
        return f"{MANIFEST} is missing" if (folder / METADATA).exists() else f"{METADATA} is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} cannot be read"
    with ThreadPoolExecutor(THREADS) as threads:
        problems = threads.map(lambda name: _changed(folder / name, manifest["files"][name]), manifest["files"])
        found = [f"{name} {problem}" for name, problem in zip(manifest["files"], problems, strict=True) if problem]
    return next(iter(found), None) or _uncommitted(folder)


def first_intact(folder: AnyPath, steps: Iterable[int]) -> tuple[int | None, dict[int, str]]:
    """Return the first step with an intact checkpoint `<folder>/<step>`, and the damage of those before it."""
    problems: dict[int, str] = {}
    for step in steps:
        problem = damage(folder / str(step))
        if problem is None:
            return step, problems
        problems[step] = problem
    return None, problems


def validation_losses(folder: AnyPath, steps: Iterable[int]) -> dict[int, float]:
    """Return step -> validation loss for the checkpoints `<folder>/<step>` that were saved with a loss."""
    losses = {}
    for step in steps:
        for name in (MANIFEST, "metrics/metrics"):  # the latter in checkpoints without a manifest
            try:
                losses[step] = float(json.loads((folder / str(step) / name).read_bytes())["loss"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return losses


def _digest(path: AnyPath) -> str:
    """Return the SHA-256 of a file; for Orbax's metadata without the commit time, which is added last."""
    if path.name == METADATA:
        return _of({name: value for name, value in json.loads(path.read_bytes()).items() if name != COMMIT_TIME})
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _changed(path: AnyPath, digest: str) -> str | None:
    try:
        return None if _digest(path) == digest else "is not as it was saved"
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError, AttributeError):
        return "cannot be read"


def _uncommitted(folder: AnyPath) -> str | None:
    if not isinstance(folder, Path):  # of object storage, where Orbax lists only committed ones
        return None
    try:
        committed = (folder / COMMITTED).read_bytes().endswith(f"/{folder.name}".encode())
    except OSError:
        committed = False
    return None if committed else f"{COMMITTED} is missing or not as it was saved"


def _is_marked(path: AnyPath) -> bool | None:
    """Whether Orbax's metadata say that there is a manifest; None if they cannot be read."""
    try:
        return MARK.items() <= (json.loads(path.read_bytes())["custom_metadata"] or {}).items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _wait_for_metadata(path: AnyPath) -> None:
    """Wait for the file that Orbax writes on its own thread once the arrays are complete."""
    end = time.monotonic() + SETTLED_SECONDS
    while not _is_marked(path):
        if time.monotonic() > end:
            raise TimeoutError(f"{path} was not written within {SETTLED_SECONDS:.0f} seconds")
        time.sleep(0.005)
