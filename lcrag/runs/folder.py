"""The output folder of a new or continued run; with several processes, only the first one writes to it."""

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import gin

from lcrag.errors import UserError, without_secrets
from lcrag.files import is_remote, write_json, write_json_lines, write_text
from lcrag.runs.configuration import differences, read_values
from lcrag.runs.metrics import MetricsLog, Trackers
from lcrag.runs.processes import is_writer, writer_does
from lcrag.runs.remote import local_copy, stored

CONFIG, RUN, LOCK, CHECKPOINTS = "config.gin", "run.json", ".lock", "checkpoints"
PACKAGES = ("lcrag", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scann", "tensorflow", "seqio",
            "gin-config", "babel", "transformers", "tokenizers")  # fmt: skip


class RunFolder:
    """The folder of one run, opened for writing by `open_run`."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints `<step>/`; it is in object storage if the run's folder is."""
        return stored(self.path / CHECKPOINTS)

    def metrics(self, after_step: int = -1, settings: Trackers | None = None) -> MetricsLog:
        """Opens the metrics log and drops the records after `after_step`, whose steps will run again."""
        return MetricsLog(self.path if is_writer() else None, after_step=after_step, settings=settings or Trackers())

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rows of supervised fine-tuning to `rows.jsonl`, for inspection."""
        if is_writer():
            write_json_lines(self.path / "rows.jsonl", rows)

    def write_episodes(self, step: int, episodes: Iterable[Mapping[str, Any]], *, extremes: bool = False) -> None:
        """Writes the episodes of a step, or only those with the highest and lowest reward of each group."""
        if is_writer():
            write_json_lines(self.path / "episodes" / f"{'extremes' if extremes else 'step'}_{step}.jsonl", episodes)


@contextlib.contextmanager
def output_folder(
    command: str, place: Path | None, may_change: Collection[str] | None = None, *, configurable: str | None = None
) -> Iterator[Path]:
    """Yields the local output folder of a command, checked before anything is built; see `check_folder`.

    Args:
      command: "train", "sft", ...
      place: Value of --output_dir; a folder in object storage gets a local copy.
      may_change: Bindings that may differ when a run is continued; None: the folder is not a run's.
      configurable: The command's name in bindings; None: `command`.
    """
    if place is None:
        raise UserError(f"lcrag {command} needs a folder for its results: --output_dir=FOLDER")
    config = gin.config_str()
    with local_copy(place) if is_remote(place) else contextlib.nullcontext(place) as path:
        writer_does(lambda: check_folder(path, configurable or command, config, may_change))
        yield path


def check_folder(path: Path, command: str, config: str, may_change: Collection[str] | None = ()) -> None:
    """Makes the checks of an output folder that are possible before anything is built; changes nothing.

    Args:
      path: The output folder, which need not exist.
      command: "train", "sft", ...
      config: All bindings of the configuration, including unused ones.
      may_change: As for `open_run`, which makes the remaining checks; None: the folder is not a run's.
    """
    place = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        why = "no permission" if place.is_dir() else f"{place} is a file"
        raise UserError(f"cannot write to the output folder {path}: {why}")
    if may_change is None or not path.exists():
        return
    if (path / LOCK).exists():
        with (path / LOCK).open() as lock:
            _lock(lock, path)
    if not _holds_run(path):
        return
    there = (path / CONFIG).read_text(encoding="utf-8")
    if not any(key.startswith(f"{command}.") for key in read_values(there, str(path / CONFIG))):
        raise UserError(f"{path} holds the run of another command than {command}; choose another --output_dir")
    if difference := differences(there, config, may_change, only_shared=True):
        raise _another_run(path, difference)


@contextlib.contextmanager
def open_run(
    path: Path,
    *,
    config: str,
    about: Mapping[str, Any],
    may_change: Collection[str] = (),
    same_hashes: Collection[str] = (),
) -> Iterator[RunFolder]:
    """Opens and locks the output folder for the run that `config` describes.

    With several processes, the first one checks, locks and writes the folder, and all processes raise its error.

    Args:
      path: The output folder; created if missing.
      config: gin's operative configuration, taken at the same point in every run, after everything is built.
      about: Result of `provenance`. A continued run keeps the first one and adds this one under "continued".
      may_change: Bindings that may differ when a run is continued, such as `train.steps`.
      same_hashes: Names of hashes in `about` that must not differ.
    """
    held = contextlib.ExitStack()

    def claim() -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((path / LOCK).open("w"))
        except OSError as error:
            raise UserError(f"cannot write to the output folder {path}: {error.strerror}") from error
        _lock(lock, path)
        for partial in path.rglob("*.[0-9]*.tmp"):  # left by a killed process
            partial.unlink(missing_ok=True)
        record = dict(about)
        if _holds_run(path):
            try:
                first = json.loads((path / RUN).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError(f"{path / RUN} cannot be read ({error}); choose another --output_dir") from error
            difference = differences((path / CONFIG).read_text(encoding="utf-8"), config, may_change)
            if not difference and first.get("seed") != about.get("seed"):
                difference = f"the seed is {first.get('seed')} there and {about.get('seed')} here"
            there, here = first.get("hashes", {}), about.get("hashes", {})
            changed = [name for name in same_hashes if there.get(name) != here.get(name)]
            if not difference and changed:
                difference = f"the content of its {changed[0]} differs"
            if difference:
                raise _another_run(path, difference)
            record = {**first, "continued": [*first.get("continued", []), record]}
        write_json(path / RUN, record)
        write_text(path / CONFIG, config)

    with held:
        writer_does(claim)
        yield RunFolder(path)


def _lock(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(f"another process is writing to {path}; wait for it or choose another --output_dir") from error


def _holds_run(path: Path) -> bool:
    """Returns whether a folder holds a run; raises a UserError if it holds other files but no run."""
    if (path / CONFIG).exists():
        return True
    others = [item.name for item in path.iterdir() if item.name not in (LOCK, RUN) and item.suffix != ".tmp"]
    if others:
        raise UserError(f"{path} holds {min(others)} but no run to continue; choose another --output_dir")
    return False


def _another_run(path: Path, difference: str) -> UserError:
    return UserError(f"{path} holds another run: {difference}; choose another --output_dir, or set it back")


def provenance(*, seed: int, hashes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the content of `run.json`; `hashes` are content hashes of data sets and indexes by name."""
    import jax  # imported here, because run folders are also read without JAX

    def git(*words: str) -> str:
        folder = Path(__file__).parent
        try:
            answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            return ""  # git is not installed, or the package is not in a repository
        return answer.stdout.strip()

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = git("rev-parse", "HEAD") or None
    if commit and git("status", "--porcelain", "--untracked-files=no"):
        commit += "+changes"
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["lcrag", *map(without_secrets, sys.argv[1:])],
        "seed": seed,
        "commit": commit,
        "python": platform.python_version(),
        "packages": versions,
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "processor_count": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "hashes": dict(hashes or {}),
    }
