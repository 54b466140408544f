"""Passages and their vectors in shards, each written whole or not at all, so that a killed build goes on.

<root>/.<language>.shards/plan.json                                      what is being made
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
    """What `shard.json` says: it is written last.

    Attributes:
      passages: How many there are; without any, the shard has no other file.
      file_bytes: Sizes of its files.
      notes: What the writer wants to know of it later.
    """

    passages: int
    file_bytes: dict[str, int]
    notes: dict[str, Any]


class Shards:
    """The shards of one collection. Several processes may write different shards at once."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def finished(self) -> dict[str, ShardRecord]:
        """The shards that are whole, by name, in the order of their names; what was cut off is not among them."""
        found = {path.parent.name: path for path in self.folder.glob(f"[!.]*/{_RECORD}")}
        records = {name: _read_record(found[name]) for name in sorted(found)}
        return {name: record for name, record in records.items() if record is not None}

    def write(self, name: str, passages: Sequence[Passage], encoder: Encoder, notes: Mapping[str, Any]) -> None:
        """Embeds passages and writes them as a shard.

        Args:
          name: Shards follow each other in the order of their names.
          passages: None is allowed.
          encoder: Embeds them.
          notes: Kept in the record.
        """
        with replacing(self.folder / name) as temporary:
            if passages:
                write_passages(passages, temporary / FILE_NAME)
                np.save(temporary / VECTORS, encoder.encode([passage_text(each) for each in passages], kind="passage"))
            sizes = {path.name: path.stat().st_size for path in temporary.iterdir()}
            record = ShardRecord(passages=len(passages), file_bytes=sizes, notes=dict(notes))
            (temporary / _RECORD).write_text(json.dumps(dataclasses.asdict(record)) + "\n")

    def passages(self) -> Iterator[Passage]:
        """All passages, shard by shard."""
        for name, record in self.finished().items():
            if record.passages:
                yield from Corpus(self.folder / name)

    def vectors(self) -> Iterator[Float[np.ndarray, "passages width"]]:
        """The vectors of each shard, in the same order."""
        for name, record in self.finished().items():
            if record.passages:
                yield np.load(self.folder / name / VECTORS, mmap_mode="r")


@contextlib.contextmanager
def open_shards(root: pathlib.Path, language: str, identity: Mapping[str, Any]) -> Iterator[Shards]:
    """The shards of a collection being built in `root`: those of an earlier attempt, or none yet.

    Args:
      root: The collections' folder.
      language: The collection.
      identity: All that its content depends on.

    Raises:
      UserError: another process is at it, or the earlier attempt was at something else and finished a shard of it.
    """
    folder = _folder(root, language)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, root / language):
        path, plan = folder / PLAN, json.dumps(dict(identity), indent=2, ensure_ascii=False) + "\n"
        shards = Shards(folder)
        if path.exists() and path.read_text(encoding="utf-8") != plan and shards.finished():
            raise UserError(
                f"{folder} is the unfinished work of another configuration, as its {PLAN} says:"
                " go on with that one, or delete the folder"
            )
        temporary = folder / f".{PLAN}"
        temporary.write_text(plan, encoding="utf-8")
        temporary.replace(path)
        yield shards


def remove_shards(root: pathlib.Path, language: str) -> None:
    """Deletes the shards of a collection that is complete, if a kill in the last moment left them."""
    if _folder(root, language).exists():
        shutil.rmtree(_folder(root, language))


def _folder(root: pathlib.Path, language: str) -> pathlib.Path:
    return (root / f".{language}.shards").absolute()


def _read_record(path: pathlib.Path) -> ShardRecord | None:
    """None for a shard whose files are not what was written: the machine went down before they were on its disk."""
    try:
        record = ShardRecord(**json.loads(path.read_text()))
        sizes = {name: (path.parent / name).stat().st_size for name in record.file_bytes}
    except (OSError, ValueError, TypeError):
        return None
    return record if sizes == record.file_bytes else None
