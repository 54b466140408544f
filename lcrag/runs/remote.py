"""Run folders in object storage: a local copy, whose files are uploaded before every checkpoint and at the end.

Object stores cannot append to files. A killed run loses no files of the steps up to its last checkpoint; later steps
run again. Every process writes its part of a checkpoint directly to the store, as Orbax does.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from lcrag.errors import UserError
from lcrag.files import remote_path
from lcrag.runs.processes import is_writer

_OPEN: dict[Path, epath.Path] = {}  # local copy -> the folder in object storage
_UPLOADED: dict[Path, tuple[int, int]] = {}


@contextlib.contextmanager
def local_copy(place: Path) -> Iterator[Path]:
    """Yields a local copy of a folder in object storage, and uploads it at the end, also after an error."""
    remote = remote_path(place)
    with tempfile.TemporaryDirectory(prefix="lcrag-run-") as folder:
        local = Path(folder)
        try:
            remote.mkdir(parents=True, exist_ok=True)
            for path in remote.glob("*"):  # what a continued run reads; checkpoints and episodes stay where they are
                if path.name in ("answers", "config.gin", "run.json", "metrics.jsonl", "evaluation.json"):
                    path.copytree(epath.Path(local) / path.name) if path.is_dir() else path.copy(local / path.name)
        except Exception as error:  # whatever the store's client raises
            raise UserError(f"cannot read or write {remote}: {' '.join(str(error).split())[:300]}") from error
        _OPEN[local] = remote
        try:
            yield local
        except UserError as error:
            raise UserError(str(error).replace(str(local), str(remote))) from error
        finally:
            upload_copies()
            del _OPEN[local]


def upload_copies() -> None:
    """Uploads new and changed files of every open local copy, in process 0 only."""
    for local, remote in _OPEN.items() if is_writer() else ():
        for path in local.rglob("*"):
            if path.is_file() and not path.name.endswith((".tmp", ".lock")):
                status = path.stat()
                version = status.st_mtime_ns, status.st_size
                if _UPLOADED.get(path) != version:
                    target = remote / path.relative_to(local)
                    try:
                        target.parent.mkdir(parents=True, exist_ok=True)
                        epath.Path(path).copy(target, overwrite=True)
                    except Exception as error:  # whatever the store's client raises
                        raise UserError(f"cannot write {target}: {' '.join(str(error).split())[:300]}") from error
                    _UPLOADED[path] = version


def stored(path: Path) -> Path:
    """Returns the address in object storage of a path in a local copy; returns any other path unchanged."""
    for local, remote in _OPEN.items():
        if local in path.parents:
            return Path(str(remote)) / path.relative_to(local)
    return path
