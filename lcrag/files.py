"""Files that are replaced atomically, their names, and the error of a full disk."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from etils import epath

REMOTE = re.compile(r"^([a-z][a-z0-9+.-]+):/{1,2}(?=[^/])")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a place is in an object store: `gs://bucket/folder`, also as a `Path`, which drops one slash."""
    return bool(REMOTE.match(os.fspath(place)))


def remote_path(place: str | os.PathLike[str]) -> epath.Path:
    """Returns the path of a place in an object store."""
    return epath.Path(REMOTE.sub(r"\1://", os.fspath(place)))


def file_name(text: str) -> str:
    """Returns a text as the name of one file: white space, and what separates folders, becomes an underscore."""
    return re.sub(r"[\s/\\\x00]", "_", text)


def write_text(path: Path, text: str) -> None:
    """Replaces the content of a file atomically; after a crash or on a full disk it holds the old or the new content.

    Raises:
      OSError: it cannot be written; `filename` is `path`.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a file that takes the place of `path` when the block has ended, and is removed if it fails."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names a file in the errors of writing it: the operating system does not where the file is open already."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def full_disk(error: BaseException | None) -> OSError | None:
    """Returns the error of a full disk (or quota) that an exception is or comes from, the one that names a file if any.

    Libraries that write without Python say it in words only, and so does gin's copy of an exception.
    """
    found = None
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename:
            return error
        for number in NO_ROOM:
            if os.strerror(number) in str(error):
                found = found or OSError(number, os.strerror(number))
        error = error.__cause__ or error.__context__
    return found
