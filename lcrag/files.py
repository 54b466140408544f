"""Files and folders: atomic replacement, digests, JSON, journals, copies of remote files, names, and refused writes."""

import codecs
import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from etils import epath

from lcrag.errors import UserError, causes

os.environ.setdefault("EPATH_USE_TF", "0")  # gs:// through gcsfs, not through TensorFlow, which takes seconds to import
_ACTIVITY = logging.getLogger("lcrag.activity")
AnyPath: TypeAlias = Path | epath.Path
WEIGHTS = Path(__file__).parent / "atlas" / "weights"  # shipped with the package
REMOTE = re.compile(r"^([a-z][a-z0-9+.-]+):/{1,2}(?=[^/])")
PATTERN = re.compile(r"[*?\[\]\\]")  # what clients of object stores, and Orbax, take for a pattern in a path
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
           errno.ELOOP, errno.EIO)  # fmt: skip
MAX_NAME_BYTES = 200  # of a name made from a text; file systems allow 255, some of which temporary names need


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a path is in an object store: `gs://bucket/folder`, also as a `Path`, which drops one slash."""
    return bool(REMOTE.match(os.fspath(place)))


def remote_path(place: str | os.PathLike[str]) -> epath.Path:
    """Returns the `epath.Path` of a path in an object store."""
    import fsspec.config  # here, because most commands need none of it

    # Listings are not cached, because other processes, and TensorStore in this one, write to the same folders.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    address = REMOTE.sub(r"\1://", os.fspath(place))
    try:
        path = epath.Path(address)
        fsspec.get_filesystem_class(address.partition(":")[0])
    except KeyError:
        raise UserError(f"{address} is in no known object store: use gs://, s3:// or a local copy") from None
    except ImportError as error:
        raise UserError(f"{address} needs a client ({error}): gs:// that of pip install 'lcrag[gcs]'") from None
    return path


def expanded(place: str | os.PathLike[str]) -> Path:
    """Returns a path whose `~` at the beginning is the home folder, which shells leave after = and in quotes."""
    path = os.path.expanduser(place)
    if path.partition("/")[0] == "~":
        raise UserError(f"{place} cannot be found, because this user has no home folder: write the whole path")
    return Path(path)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns `$XDG_CACHE_HOME/lcrag`, by default `~/.cache/lcrag`: the folder of what can be made again.

    A user who has no home folder that can be written to, as in many containers, gets a private temporary folder.
    """
    if chosen := environment.get("XDG_CACHE_HOME"):
        return expanded(chosen) / "lcrag"
    usual = Path(os.path.expanduser("~")) / ".cache" / "lcrag"
    there = next(parent for parent in (usual, *usual.parents) if parent.exists())
    if usual.is_absolute() and (there == usual or os.access(there, os.W_OK)):
        return usual
    try:
        private = Path(tempfile.gettempdir()) / f"lcrag-{os.getuid()}"
        private.mkdir(mode=0o700, exist_ok=True)
        if private.is_symlink() or private.stat().st_uid != os.getuid():  # programs are loaded from it
            raise PermissionError(errno.EPERM, f"{private} belongs to another user")
    except OSError as error:
        raise UserError(
            f"there is no folder for caches ({error.strerror}): set XDG_CACHE_HOME to one that can be written to"
        ) from error
    return private


@functools.cache
def local_files(place: str | os.PathLike[str]) -> Path:
    """Returns a path itself, or that of a copy in `cache_folder()/objects` if it is in an object store.

    Files whose size and time have not changed are not copied again. Each process checks once; several may copy at the
    same time.
    """
    if not is_remote(place):
        return expanded(place)
    source = remote_path(place)
    local = cache_folder() / "objects" / str(source).replace("://", "/")

    def copy(path: epath.Path, copied: Path) -> None:
        if path.is_dir():
            for inner in path.iterdir():
                if inner.name != path.name or inner.exists():  # gcsfs lists the object of an empty folder in itself
                    copy(inner, copied / inner.name)
            return
        about = path.stat()
        if copied.exists() and (copied.stat().st_size, int(copied.stat().st_mtime)) == (about.length, about.mtime):
            return
        activity.info("copying %s", path)
        copied.parent.mkdir(parents=True, exist_ok=True)
        with replacing(copied) as temporary:
            path.copy(temporary)
            os.utime(temporary, (about.mtime, about.mtime))

    activity = logging.getLogger("lcrag.activity")
    activity.info("looking for %s", source)
    try:
        if not source.exists():
            raise UserError(f"there is nothing at {source}: see how it is written, and who may read it")
        copy(source, local)
    except UserError:
        raise
    except Exception as error:  # whatever the store's client raises
        raise UserError(f"cannot copy {source} to {local}: {' '.join(str(error).split())[:300]}") from error
    return local


def resolved_folder(folder: str | os.PathLike[str]) -> Path:
    """Returns the local path of a folder of weights: a path or address, or one that ships ("atlas/cold_start")."""
    shipped = WEIGHTS / os.fspath(folder).removeprefix("atlas/")
    path = local_files(os.fspath(folder))
    return shipped if not path.exists() and shipped.is_dir() else path


def file_name(text: str) -> str:
    """Converts a text to a file name: white space and path separators become underscores; long ones get a hash."""
    name = re.sub(r"[\s/\\\x00]", "_", text)
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return f"{name[:20]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}-{name[-20:]}"


def matching_files(place: str | os.PathLike[str]) -> list[Path]:
    """Returns the file or folder of this name, or else what it matches as a pattern, such as `rows_*.jsonl`, sorted.

    Only what follows the last existing folder is a pattern, so folders may have any name.
    """
    path = expanded(place)
    if path.exists():
        return [path]
    root = next(parent for parent in path.parents if parent.exists())
    return shown_files(root, str(path.relative_to(root)))


def shown_files(root: Path, pattern: str) -> list[Path]:
    """Returns what matches a pattern in a folder, sorted, without hidden files and those in hidden folders.

    Editors, file managers and notebooks keep deleted and earlier versions there. A pattern that names them has them.
    """
    try:
        paths = sorted(root.glob(pattern))
    except ValueError as error:
        raise UserError(f"{root / pattern} is no pattern of files ({error}): correct it") from error
    names_hidden = any(part.startswith(".") for part in Path(pattern).parts)
    return [
        file for file in paths if names_hidden or not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]


def check_writable(folder: Path) -> None:
    """Raises a UserError if a folder, or the one that it would be created in, cannot be written to; changes nothing."""
    if folder.parts and re.fullmatch(r"[a-z][a-z0-9+.-]+:", folder.parts[0]):
        raise UserError(
            f"{folder} names no bucket: write {folder}//BUCKET/FOLDER, or the absolute path of a folder here"
        )
    try:
        place = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
        place.stat()  # a link may lead nowhere, or in a circle
        if any(len(os.fsencode(part)) > os.pathconf(place, "PC_NAME_MAX") for part in folder.parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        if not place.is_dir():
            raise OSError(errno.ENOTDIR, f"{place} is a file")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another --output_dir"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replaces the content of a file atomically: after a crash or on a full disk it has the old or the new content."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file, which replaces `path` when the block ends, or is removed on an error."""
    temporary = path.with_name(f"{path.name[:50]}.{os.getpid()}.tmp")  # a name may have 255 bytes
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of a file to errors of writing it, which lack the name if the file was already open."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def readable_folder(folder: str | Path) -> Path:
    """Returns the folder with the content: `folder`, or its previous version if a replacement was killed half-way."""
    folder = expanded(folder)
    previous = _previous(folder)
    return previous if not folder.exists() and previous.exists() else folder


def lock(descriptor: int, place: Path) -> bool:
    """Locks an open file or folder until it is closed, or its process ends; returns False if another holds it.

    Some network and FUSE file systems have no locks, or none of folders: this is reported, and the work goes on.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _report_missing_locks(str(error.strerror), place.parent)
    return True


@functools.cache
def _report_missing_locks(why: str, place: Path) -> None:
    print(f"lcrag: files in {place} cannot be locked ({why}): let one command at a time write there", file=sys.stderr)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for a change of its files, which other processes may want to make too.

    Waits for them; each must read the files after this.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not lock(descriptor, folder):
            _ACTIVITY.info("waiting for another process, which writes in %s", folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which unlocks it


@contextlib.contextmanager
def replacing_folder(folder: str | Path, *, keep: bool = False) -> Iterator[Path]:
    """Yields a temporary folder that replaces `folder` when the block ends without an error.

    A process killed at any moment leaves the earlier content readable (see `readable_folder`). With `keep`, the
    temporary folder has the content of an earlier block that failed or was killed; otherwise it is empty at first.
    Another process that is writing the same folder is a UserError.
    """
    folder = expanded(folder).absolute()
    building = folder.with_name(f".{folder.name}.building")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file where a folder is to be written: move or rename it")
    building.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(building, os.O_RDONLY)
    try:
        if not lock(descriptor, building):
            keep = True  # it is the other's
            raise UserError(f"{folder} is being written by another process: wait until it has finished")
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
    except BaseException:
        if not keep:
            shutil.rmtree(building)
        raise
    finally:
        os.close(descriptor)


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


# --- Digests ---

MANIFEST = "manifest.json"
DIGEST_THREADS = 8


def write_manifest(folder: AnyPath, paths: Iterable[AnyPath], **about: Any) -> None:
    """Writes `manifest.json` with the SHA-256 digests of files of a folder, and JSON values about them."""
    files = [path for path in paths if path.is_file()]
    with ThreadPoolExecutor(DIGEST_THREADS) as threads:
        digests = dict(zip((str(path.relative_to(folder)) for path in files), threads.map(_digest, files), strict=True))
    content = {**about, "files": digests}
    (folder / MANIFEST).write_text(json.dumps(content | {"digest": _digest_of(content)}), encoding="utf-8")


def read_manifest(folder: AnyPath) -> dict[str, Any]:
    """Returns the manifest of a folder; a ValueError says that it is missing or changed."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if content.pop("digest") == _digest_of(content):
            return content
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{MANIFEST} is not as it was saved")


def damage(folder: AnyPath, *, skip: str = "(?!)") -> str | None:
    """Returns a clause that names the first damaged file of a folder; None if all are as its manifest says.

    Files whose names match the regular expression `skip` are not read.
    """

    def problem(name: str, digest: str) -> str | None:
        try:
            return None if _digest(folder / name) == digest else f"{name} is not as it was saved"
        except OSError as error:
            return f"{name} is missing" if isinstance(error, FileNotFoundError) else f"{name} cannot be read"

    try:
        files = {name: digest for name, digest in read_manifest(folder)["files"].items() if not re.search(skip, name)}
    except ValueError as error:
        return str(error)
    with ThreadPoolExecutor(DIGEST_THREADS) as threads:
        return next(filter(None, list(threads.map(problem, files, files.values()))), None)


def check_manifest(folder: Path, *, skip: str = "(?!)") -> None:
    """Raises a UserError if a folder has a manifest, and a file is not as this says; see `damage`."""
    if (folder / MANIFEST).exists() and (problem := damage(folder, skip=skip)):
        raise UserError(
            f"{folder} is damaged ({problem}): copy or build it again, or delete its {MANIFEST} if you changed a file"
        )


def _digest(path: AnyPath) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- JSON ---


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object; anything else is a UserError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): copy the file again") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): copy or write the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object: copy or write the file again")
    return value


LINE_END = re.compile(rb"\r\n?|\n")  # JSON has no such byte inside a line


def read_json_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Reads JSON Lines as (line number, object); anything else is a UserError that names its line.

    An incomplete text after the last newline, which a killed process leaves, is ignored.
    """
    rows, lines = [], LINE_END.split(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append((number, row))
        elif number < len(lines):
            raise UserError(f"{path}, line {number}, is not a JSON object: remove that line to continue")
    return rows


def read_metrics_file(path: Path) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl`, oldest first: numbers or null, with a step."""
    rows = read_json_rows(path)
    for number, row in rows:
        step, known = row.get("step"), all(type(value) in (int, float, type(None)) for value in row.values())
        if not known or type(step) is not int or step < 0:
            raise UserError(
                f'{path}, line {number}, is not an object of numbers with an integer "step": remove that line to'
                " continue"
            )
    return [row for _, row in rows]


def read_optional_json(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object; returns an empty object if the file does not exist."""
    return read_json_object(path) if path.is_file() else {}


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Replaces a file with JSON Lines; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(map(json_line, values)))


def json_line(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """Converts a value to JSON's types: arrays to lists or numbers, non-finite numbers to null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and JAX, scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


class Journal:
    """A file of JSON lines that grows; all rows of a call are on disk before `append` returns.

    An incomplete last line, which a killed process leaves, is truncated.
    """

    def __init__(self, path: Path):
        self._path = path
        content = path.read_bytes() if path.exists() else b""
        whole = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
        if whole < len(content):
            os.truncate(path, whole)
        self.rows = [row for _, row in read_json_rows(path)] if content else []

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows."""
        lines = list(map(json_line, rows))
        with naming(self._path), self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.rows += map(json.loads, lines)


def full_disk(error: BaseException | None) -> OSError | None:
    """Returns the error of a full disk (or quota) of an exception or its causes, best one with a file name."""
    nameless = None
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in NO_ROOM and cause.filename:
            return cause
        for number in NO_ROOM:  # libraries in C++, and gin's copies of exceptions, have it in their message only
            if os.strerror(number) in str(cause):
                nameless = nameless or OSError(number, os.strerror(number))
    return nameless


def refused_file(error: BaseException | None) -> OSError | None:
    """Returns the error of a file or folder that the system refuses (see `REFUSED`) of an exception or its causes."""
    refused = (
        cause for cause in causes(error) if isinstance(cause, OSError) and cause.errno in REFUSED and cause.filename
    )
    return next(refused, None)
