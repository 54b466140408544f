"""The output folder of a new or continued run; with several processes, only the first one writes to it."""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import gin

from lcrag.errors import UserError
from lcrag.files import is_remote
from lcrag.runs.configuration import configures, differences
from lcrag.runs.files import write_json, write_json_lines, write_text
from lcrag.runs.metrics import USUAL_TRACKERS, MetricsLog, UnwrittenLog
from lcrag.runs.processes import is_writer, writer_does
from lcrag.runs.remote import local_copy, stored
from lcrag.runs.trackers import Trackers

CONFIG, RUN, LOCK, CHECKPOINTS = "config.gin", "run.json", ".lock", "checkpoints"
ROWS = "rows.jsonl"


class RunFolder:
    """The folder of one run, opened for writing by `open_run`."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints `<step>/`; it is in object storage if the run's folder is."""
        return stored(self.path / CHECKPOINTS)

    def metrics(self, after_step: int = -1, settings: Trackers = USUAL_TRACKERS) -> MetricsLog | UnwrittenLog:
        """Opens the metrics log and drops the records after `after_step`, whose steps will run again."""
        return MetricsLog(self.path, after_step=after_step, settings=settings) if is_writer() else UnwrittenLog()

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rows of supervised fine-tuning as JSON Lines, for inspection."""
        if is_writer():
            write_json_lines(self.path / ROWS, rows)

    def write_episodes(self, step: int, episodes: Iterable[Mapping[str, Any]], *, extremes: bool = False) -> Path:
        """Writes the episodes of a step as JSON Lines and returns the path of the file.

        Args:
          step: The step.
          episodes: The rows of its episodes.
          extremes: Whether they are only the episodes with the highest and lowest reward of each group.
        """
        path = self.path / "episodes" / f"{'extremes' if extremes else 'step'}_{step}.jsonl"
        if is_writer():
            write_episodes(path, episodes)
        return path


def write_episodes(path: Path, episodes: Iterable[Mapping[str, Any]]) -> None:
    """Writes episodes as JSON Lines; see `lcrag.episodes.episode_json`."""
    path.parent.mkdir(exist_ok=True)
    write_json_lines(path, episodes)


@contextlib.contextmanager
def output_folder(
    command: str, place: Path | None, may_change: Collection[str] | None = None, *, configurable: str | None = None
) -> Iterator[Path]:
    """Yields the local output folder of a command, checked before anything is built.

    Args:
      command: "train", "sft", ...
      place: Value of --output_dir; a folder in object storage gets a local copy.
      may_change: Bindings that may differ when a run is continued; None: the folder is not a run's.
      configurable: The command's name in bindings; None: `command`.

    Raises:
      UserError: no folder is given, it cannot be written, or it holds other files or another run.
    """
    if place is None:
        raise UserError(f"lcrag {command} needs a folder for its results: --output_dir=FOLDER")
    with local_copy(place) if is_remote(place) else contextlib.nullcontext(place) as path:
        if may_change is None:
            check_place(path)
        else:
            check_folder(path, configurable or command, gin.config_str(), may_change)
        yield path


def check_folder(path: Path, command: str, config: str, may_change: Collection[str] = ()) -> None:
    """Makes the checks of an output folder that are possible before anything is built; changes nothing.

    Args:
      path: The output folder, which need not exist.
      command: "train", "sft", ...
      config: All bindings of the configuration, including unused ones.
      may_change: As for `open_run`, which makes the remaining checks.

    Raises:
      UserError: the folder cannot be written, another process writes to it, or it holds other files or another run.
    """
    writer_does(lambda: _check_folder(path, command, config, may_change))


def check_place(path: Path) -> None:
    """Checks that an output folder can be written, without regard to its content; changes nothing.

    Raises:
      UserError: the folder cannot be written.
    """
    writer_does(lambda: _check_place(path))


def _check_place(path: Path) -> None:
    place = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        why = "no permission" if place.is_dir() else f"{place} is a file"
        raise UserError(f"cannot write to the output folder {path}: {why}")


def _check_folder(path: Path, command: str, config: str, may_change: Collection[str]) -> None:
    _check_place(path)
    if not path.exists():
        return
    if (path / LOCK).exists():
        with (path / LOCK).open() as lock:
            _lock(lock, path)
    if not _holds_run(path):
        return
    there = (path / CONFIG).read_text(encoding="utf-8")
    if not configures(command, there):
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

    Raises:
      UserError: the folder cannot be written, holds another run or other files, or another process writes to it.
    """
    with contextlib.ExitStack() as held:
        writer_does(lambda: _claim(held, path, config, about, may_change, same_hashes))
        yield RunFolder(path)


def _claim(
    held: contextlib.ExitStack,
    path: Path,
    config: str,
    about: Mapping[str, Any],
    may_change: Collection[str],
    same_hashes: Collection[str],
) -> None:
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
        first = _read_about(path)
        _check_same_run(path, config, first, about, may_change, same_hashes)
        record = {**first, "continued": [*first.get("continued", []), record]}
    write_json(path / RUN, record)
    write_text(path / CONFIG, config)


def _lock(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(f"another process is writing to {path}; wait for it or choose another --output_dir") from error


def _holds_run(path: Path) -> bool:
    """Returns whether a folder holds a run.

    Raises:
      UserError: the folder holds other files but no run.
    """
    if (path / CONFIG).exists():
        return True
    others = [item.name for item in path.iterdir() if item.name not in (LOCK, RUN) and item.suffix != ".tmp"]
    if others:
        raise UserError(f"{path} holds {min(others)} but no run to continue; choose another --output_dir")
    return False


def _check_same_run(
    path: Path,
    config: str,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    may_change: Collection[str],
    same_hashes: Collection[str],
) -> None:
    difference = differences((path / CONFIG).read_text(encoding="utf-8"), config, may_change)
    if not difference and there.get("seed") != here.get("seed"):
        difference = f"the seed is {there.get('seed')} there and {here.get('seed')} here"
    if not difference:
        hashes = there.get("hashes", {}), here.get("hashes", {})
        changed = [name for name in same_hashes if hashes[0].get(name) != hashes[1].get(name)]
        difference = f"the content of its {changed[0]} differs" if changed else None
    if difference:
        raise _another_run(path, difference)


def _another_run(path: Path, difference: str) -> UserError:
    return UserError(f"{path} holds another run: {difference}; choose another --output_dir, or set it back")


def _read_about(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} has lost its {RUN}; choose another --output_dir") from None
    except ValueError as error:
        raise UserError(f"{path / RUN} is not JSON ({error}); correct it or choose another --output_dir") from error
