"""Run folders in object storage: a local copy whose files are uploaded before every checkpoint and at the end.

Object stores cannot append to files, so metrics, episodes and answers are written locally, and whole files are uploaded
before the checkpoint of the same step is saved. A killed run therefore loses no files of the steps up to its last
checkpoint; later steps run again. Every process writes its part of checkpoints directly to the store.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from etils import epath

from lcrag.errors import UserError
from lcrag.files import remote_path
from lcrag.runs.processes import is_writer, writer_does

PROBE = ".lcrag-write-test"
ANSWERS, UNSENT = "answers", (".tmp", ".lock")
LARGEST_BYTES = 2**28  # maximum size of a file that a continued run downloads
ATTEMPTS, THREADS = 3, 16
_OPEN: dict[Path, "LocalCopy"] = {}


class LocalCopy:
    """A folder in object storage and its local copy.

    Attributes:
      local: The local folder.
      remote: The folder in object storage.
    """

    def __init__(self, local: Path, remote: epath.Path):
        self.local, self.remote = local, remote
        self._uploaded: dict[Path, tuple[int, int]] = {}
        writer_does(self._probe)
        self._download()

    def _probe(self) -> None:
        """Checks that the folder in object storage can be written and read.

        Raises:
          UserError: the folder cannot be written or read.
        """
        try:
            self.remote.mkdir(parents=True, exist_ok=True)
            (self.remote / PROBE).write_text("x")
            (self.remote / PROBE).unlink()
        except Exception as error:  # whatever the store's client raises
            raise UserError(f"cannot write to {self.remote}: {_reason(error)}") from error

    def _download(self) -> None:
        """Downloads the files that a continued run reads: those of the folder itself, and answers."""
        folders = [self.remote, *(each for each in (self.remote / ANSWERS,) if each.exists())]
        for folder in folders:
            for path in folder.iterdir():
                if path.is_dir() or path.name == PROBE or ".tfevents." in path.name:
                    continue
                if path.stat().length > LARGEST_BYTES:
                    continue
                target = self.local / path.relative_to(self.remote)
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(path.read_bytes())
                self._uploaded[target] = _version(target)

    def upload(self) -> None:
        """Uploads new and changed files, in process 0 only.

        Raises:
          UserError: a file could not be uploaded.
        """
        if not is_writer():
            return
        files = [path for path in self.local.rglob("*") if path.is_file() and not path.name.endswith(UNSENT)]
        versions = {path: _version(path) for path in files if self._uploaded.get(path) != _version(path)}
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._upload, versions))
        self._uploaded |= versions

    def _upload(self, path: Path) -> None:
        target = self.remote / path.relative_to(self.local)
        for attempt in range(ATTEMPTS):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                epath.Path(path).copy(target, overwrite=True)
                return
            except Exception as error:  # whatever the store's client raises
                if attempt == ATTEMPTS - 1:
                    raise UserError(f"cannot write {target}: {_reason(error)}") from error


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextlib.contextmanager
def local_copy(place: Path) -> Iterator[Path]:
    """Yields a local copy of a folder in object storage, and uploads it at the end, also after an error.

    Errors name the folder in object storage.

    Raises:
      UserError: the folder cannot be read or written; it is raised in every process.
    """
    with tempfile.TemporaryDirectory(prefix="lcrag-run-") as folder:
        local, remote = Path(folder), remote_path(place)
        try:
            _OPEN[local] = copy = LocalCopy(local, remote)
            try:
                yield local
            finally:
                copy.upload()
                if is_writer():
                    print(f"lcrag: what {local} held is in {remote}", flush=True)
        except UserError as error:
            raise UserError(str(error).replace(str(local), str(remote))) from error
        finally:
            _OPEN.pop(local, None)


def upload_copies() -> None:
    """Uploads new and changed files of every open local copy; called before a checkpoint is saved.

    Raises:
      UserError: a file could not be uploaded.
    """
    for copy in _OPEN.values():
        copy.upload()


def stored(path: Path) -> Path:
    """Returns the address in object storage of a path in a local copy; returns any other path unchanged."""
    for local, copy in _OPEN.items():
        if local == path or local in path.parents:
            return Path(str(copy.remote)) / path.relative_to(local)
    return path
