"""Opens the output folder of a run: a new one, or the same run continued; never another run's."""

import contextlib
import fcntl
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lcrag.app.runs.atomic import write_json, write_json_lines, write_text
from lcrag.app.runs.metrics import MetricsLog, UnwrittenLog
from lcrag.app.runs.same_run import first_difference
from lcrag.app.runs.writer import is_writer, writer_does
from lcrag.errors import UserError

CONFIG, RUN, LOCK, CHECKPOINTS = "config.gin", "run.json", ".lock", "checkpoints"
ROWS = "rows.jsonl"


class RunFolder:
    """The folder of one run, open for writing. Made by `open_run`."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go, `<step>/` each."""
        return self.path / CHECKPOINTS

    def metrics(self, after_step: int = -1) -> MetricsLog | UnwrittenLog:
        """The log of numbers, continued after `after_step`: records of later steps are dropped, as these run again."""
        return MetricsLog(self.path, after_step=after_step) if is_writer() else UnwrittenLog()

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes what is learned of a step's rows, one object a line, for people to check."""
        if is_writer():
            write_json_lines(self.path / ROWS, rows)

    def write_episodes(self, step: int, episodes: Iterable[Mapping[str, Any]]) -> Path:
        """Writes the episodes of a step, one object a line, and returns their file."""
        path = self.path / "episodes" / f"step_{step}.jsonl"
        if is_writer():
            path.parent.mkdir(exist_ok=True)
            write_json_lines(path, episodes)
        return path


@contextlib.contextmanager
def open_run(
    path: Path,
    *,
    config: str,
    about: Mapping[str, Any],
    may_change: Collection[str] = (),
    same_hashes: Collection[str] = (),
) -> Iterator[RunFolder]:
    """Opens `path` for the run that `config` describes, and holds it until the block ends.

    Of several processes the first one checks, holds and writes; what it refuses ends all of them.

    Args:
      path: The output folder; made if it is missing.
      config: gin's operative configuration, taken when everything is built. Always take it at the same point.
      about: What `provenance` returns. When a run is continued its own is kept, and this is added under "continued".
      may_change: Bindings that may differ when a run is continued, e.g. `train.steps`.
      same_hashes: Names of hashes in `about` that may not differ.

    Raises:
      UserError: The folder cannot be written, holds another run or other files, or another process writes to it.
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
    _hold(lock, path)
    continued = _check(path, config, about, may_change, same_hashes)
    write_json(path / RUN, _about(path, about) if continued else dict(about))
    write_text(path / CONFIG, config)


def _hold(lock: Any, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(f"another process is writing to {path}; wait for it or choose another --output_dir") from error


def _check(
    path: Path, config: str, about: Mapping[str, Any], may_change: Collection[str], same_hashes: Collection[str]
) -> bool:
    """Whether the folder holds this very run already."""
    if not (path / CONFIG).exists():
        strangers = [item.name for item in path.iterdir() if item.name not in (LOCK, RUN) and item.suffix != ".tmp"]
        if strangers:
            raise UserError(f"{path} holds {min(strangers)} but no run to continue; choose another --output_dir")
        return False
    difference = first_difference((path / CONFIG).read_text(encoding="utf-8"), config, may_change)
    difference = difference or _different_seed(path, about) or _different_hash(path, about, same_hashes)
    if difference:
        raise UserError(f"{path} holds another run: {difference}; choose another --output_dir, or set it back")
    return True


def _different_seed(path: Path, about: Mapping[str, Any]) -> str | None:
    there, here = _read_about(path).get("seed"), about.get("seed")
    return None if there == here else f"the seed is {there} there and {here} here"


def _different_hash(path: Path, about: Mapping[str, Any], names: Collection[str]) -> str | None:
    there, here = _read_about(path).get("hashes", {}), about.get("hashes", {})
    changed = [name for name in names if there.get(name) != here.get(name)]
    return f"the content of its {changed[0]} is another one than here" if changed else None


def _read_about(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} has lost its {RUN}; choose another --output_dir") from None
    except ValueError as error:
        raise UserError(f"{path / RUN} is not JSON ({error}); mend it or choose another --output_dir") from error


def _about(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    first = _read_about(path)
    return {**first, "continued": [*first.get("continued", []), dict(about)]}
