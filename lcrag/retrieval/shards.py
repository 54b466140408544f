"""Passages and vectors in shards, each written atomically, so a killed build can continue.

<root>/.<language>.shards/plan.json                                      the identity of the content
                          <shard>/passages.arrow vectors.npy shard.json
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.retrieval.corpus import FILE_NAME, Corpus, write_passages
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.folders import exclusive, replacing
from lcrag.retrieval.index import VECTORS
from lcrag.retrieval.passages import Passage, passage_text

PLAN = "plan.json"
_RECORD = "shard.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """Content of `shard.json`, which is written last.

    Attributes:
      passages: Their number; an empty shard has no other file.
      file_bytes: Sizes of its files.
      notes: Information of the writer, kept with the shard.
    """

    passages: int
    file_bytes: dict[str, int]
    notes: dict[str, Any]


class Shards:
    """The shards of one collection; several processes can write different shards at once."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def finished(self) -> dict[str, ShardRecord]:
        """Returns the complete shards, in the order of their names."""
        found = {path.parent.name: path for path in self.folder.glob(f"[!.]*/{_RECORD}")}
        records = {name: _read_record(found[name]) for name in sorted(found)}
        return {name: record for name, record in records.items() if record is not None}

    def write(self, name: str, passages: Sequence[Passage], encoder: Encoder, notes: Mapping[str, Any]) -> None:
        """Embeds passages, if any, and writes them as a shard with `notes` in its record."""
        with replacing(self.folder / name) as temporary:
            if passages:
                write_passages(passages, temporary / FILE_NAME)
                np.save(temporary / VECTORS, encoder.encode([passage_text(each) for each in passages], kind="passage"))
            sizes = {path.name: path.stat().st_size for path in temporary.iterdir()}
            record = ShardRecord(passages=len(passages), file_bytes=sizes, notes=dict(notes))
            (temporary / _RECORD).write_text(json.dumps(dataclasses.asdict(record)) + "\n")

    def rows(self) -> list["Rows"]:
        """Returns all passages and their vectors, shard by shard."""
        finished = self.finished().items()
        return [Rows(self.folder / name, 0, record.passages) for name, record in finished if record.passages]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Passages and vectors of a folder, from row `start` up to `stop`."""

    folder: pathlib.Path
    start: int
    stop: int

    def passages(self) -> Iterator[Passage]:
        return Corpus(self.folder).rows(self.start, self.stop)

    def vectors(self) -> Float[np.ndarray, "passages width"]:
        return np.load(self.folder / VECTORS, mmap_mode="r")[self.start : self.stop]


def split_rows(rows: Sequence[Rows], parts: int) -> list[list[Rows]]:
    """Splits rows, in order, into parts whose sizes differ by at most one."""
    total = sum(each.stop - each.start for each in rows)
    bounds = [part * total // parts for part in range(parts + 1)]
    before = [0]
    for each in rows:
        before.append(before[-1] + each.stop - each.start)
    return [
        [
            Rows(each.folder, each.start + max(low - first, 0), each.start + min(high, last) - first)
            for each, first, last in zip(rows, before, before[1:], strict=False)
            if max(low, first) < min(high, last)
        ]
        for low, high in zip(bounds, bounds[1:], strict=False)
    ]


@contextlib.contextmanager
def open_shards(root: pathlib.Path, language: str, identity: Mapping[str, Any]) -> Iterator[Shards]:
    """Opens the shards of a collection being built in `root`, including those of an earlier attempt.

    `identity` is everything that the content of the collection depends on.

    Raises:
      UserError: Another process is writing them, or the shards there have another identity.
    """
    folder = _folder(root, language)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, root / language):
        path, plan = folder / PLAN, json.dumps(dict(identity), indent=2, ensure_ascii=False) + "\n"
        shards = Shards(folder)
        if path.exists() and path.read_text(encoding="utf-8") != plan and shards.finished():
            raise UserError(
                f"{folder} is the unfinished work of another configuration (see its {PLAN}):"
                " continue that one, or delete the folder"
            )
        temporary = folder / f".{PLAN}"
        temporary.write_text(plan, encoding="utf-8")
        temporary.replace(path)
        yield shards


def remove_shards(root: pathlib.Path, language: str) -> None:
    """Deletes the shards of a complete collection, which a killed process may have left."""
    if _folder(root, language).exists():
        shutil.rmtree(_folder(root, language))


def _folder(root: pathlib.Path, language: str) -> pathlib.Path:
    return (root / f".{language}.shards").absolute()


def _read_record(path: pathlib.Path) -> ShardRecord | None:
    """Returns a shard's record, or None if its files are incomplete, as after a crash of the machine."""
    try:
        record = ShardRecord(**json.loads(path.read_text()))
        sizes = {name: (path.parent / name).stat().st_size for name in record.file_bytes}
    except (OSError, ValueError, TypeError):
        return None
    return record if sizes == record.file_bytes else None
