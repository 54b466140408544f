"""Atomic replacement of folders."""

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Iterator

from lcrag.errors import UserError


def readable(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder with the content: `folder`, or its previous version if a replacement was killed half-way."""
    folder = pathlib.Path(folder)
    previous = _previous(folder)
    return previous if not folder.exists() and previous.exists() else folder


@contextlib.contextmanager
def replacing(folder: str | pathlib.Path, *, keep: bool = False) -> Iterator[pathlib.Path]:
    """Yields a temporary folder that replaces `folder` when the block ends without an error.

    A process killed at any moment leaves the earlier content readable (see `readable`). With `keep`, the temporary
    folder has the content of an earlier block that failed or was killed; otherwise it is empty at first. Another
    process that is writing the same folder is a UserError.
    """
    folder = pathlib.Path(folder).absolute()
    building = folder.with_name(f".{folder.name}.building")
    building.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends, however it ends
        if not keep:
            for path in building.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield building
        previous = _previous(folder)
        if folder.exists():
            if previous.exists():
                shutil.rmtree(previous)
            folder.rename(previous)
        building.rename(folder)
        if previous.exists():
            shutil.rmtree(previous)
    except BlockingIOError as error:
        raise UserError(f"{folder} is being written by another process: wait until it has finished") from error
    except BaseException:
        if not keep:
            shutil.rmtree(building)
        raise
    finally:
        os.close(descriptor)


def _previous(folder: pathlib.Path) -> pathlib.Path:
    return folder.with_name(f".{folder.name}.previous")
