"""Atomic replacement of folders, and checksums of their files."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import zlib
from collections.abc import Iterator

from lcrag.errors import UserError

# Larger files are checked by their size alone: reading them would take too long.
LARGEST_CHECKED_BYTES = 1 << 30


def readable(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder with the content: `folder`, or its previous version if a replacement was killed half-way."""
    folder = pathlib.Path(folder)
    previous = _previous(folder)
    return previous if not folder.exists() and previous.exists() else folder


@contextlib.contextmanager
def replacing(folder: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder that replaces `folder` when the block ends without an error.

    A process killed at any moment leaves the earlier content readable (see `readable`); the next writer clears its
    temporary folder.

    Raises:
      UserError: Another process is writing the same folder.
    """
    folder = pathlib.Path(folder).absolute()
    with _claimed(folder) as building:
        for path in building.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield building
        except BaseException:
            shutil.rmtree(building)
            raise
        _swap(building, folder)


@contextlib.contextmanager
def adding_to(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from replacing `folder` while the block adds to it.

    Raises:
      UserError: Another process is writing the same folder.
    """
    with _claimed(folder.absolute()) as building:
        try:
            yield
        finally:
            shutil.rmtree(building)


@contextlib.contextmanager
def _claimed(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the folder in which `folder` is rebuilt, locked."""
    building = folder.with_name(f".{folder.name}.building")
    building.mkdir(parents=True, exist_ok=True)
    with exclusive(building, folder):
        yield building


def file_checks(folder: pathlib.Path) -> dict[str, dict[str, int]]:
    """Returns the size in bytes and the CRC-32 of every file under `folder`, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "crc32": _crc32(path)} for path in paths
    }


def first_damaged(folder: pathlib.Path, checks: dict[str, dict[str, int]]) -> str | None:
    """Returns the first file that is missing or differs from `file_checks`, or None."""
    for name, check in checks.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != check["bytes"]:
            return name
        if check["bytes"] <= LARGEST_CHECKED_BYTES and _crc32(path) != check["crc32"]:
            return name
    return None


def _previous(folder: pathlib.Path) -> pathlib.Path:
    return folder.with_name(f".{folder.name}.previous")


@contextlib.contextmanager
def exclusive(building: pathlib.Path, folder: pathlib.Path) -> Iterator[None]:
    """Holds a lock on `building`, which the operating system releases when the process ends.

    Raises:
      UserError: Another process holds it; the message names `folder`.
    """
    descriptor = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise UserError(f"{folder} is being written by another process: wait until it has finished") from error
    finally:
        os.close(descriptor)


def _swap(building: pathlib.Path, folder: pathlib.Path) -> None:
    previous = _previous(folder)
    if folder.exists():
        if previous.exists():
            shutil.rmtree(previous)
        folder.rename(previous)
    building.rename(folder)
    if previous.exists():
        shutil.rmtree(previous)


def _crc32(path: pathlib.Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
