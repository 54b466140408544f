"""One language's collection: its passages, vectors, index, and `meta.json` that vouches for them."""

import dataclasses
import json
import pathlib

import numpy as np

from lcrag.errors import UserError
from lcrag.retrieval.corpus import FILE_NAME, Corpus
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.folders import first_damaged, readable
from lcrag.retrieval.index import VECTORS, Index, IndexFacts, read_index
from lcrag.retrieval.passages import Hit

META = "meta.json"
ENCODER = "encoder"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """What `meta.json` says of a collection: content and encoder fingerprints, the index, the sums of its files.

    `source` names what it was made from and how, if it was made from shards; empty otherwise.
    """

    language: str
    count: int
    fingerprint: str
    encoder_fingerprint: str
    dimension: int
    index: IndexFacts
    files: dict[str, dict[str, int]]
    source: str = ""


def write_meta(folder: pathlib.Path, meta: CollectionMeta) -> None:
    (folder / META).write_text(json.dumps(dataclasses.asdict(meta), indent=2) + "\n")


def read_meta(folder: str | pathlib.Path) -> CollectionMeta:
    """What is recorded of the collection in `folder`.

    Raises:
      UserError: it has no readable `meta.json`.
    """
    path = readable(folder) / META
    try:
        values = json.loads(path.read_text())
        return CollectionMeta(**{**values, "index": IndexFacts(**values["index"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: build the collection again with build_collection") from error


@dataclasses.dataclass(frozen=True)
class Collection:
    """One language's passages and their index."""

    meta: CollectionMeta
    corpus: Corpus
    index: Index

    def hits(self, queries: np.ndarray, k: int) -> list[list[Hit]]:
        """For each query vector its best passages, best first."""
        return [
            [self._hit(row, score) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(*(found.tolist() for found in self.index.search(queries, k)), strict=True)
        ]

    def _hit(self, row: int, score: float) -> Hit:
        passage = self.corpus[row]
        return Hit(id=passage.id, title=passage.title, text=passage.text, score=score, language=self.meta.language)


def open_collection(folder: str | pathlib.Path, encoder: Encoder) -> Collection:
    """Checks and opens one language's collection.

    Raises:
      UserError: a file is missing or damaged, or the vectors are another encoder's.
    """
    folder = readable(folder)
    meta = read_meta(folder)
    if meta.encoder_fingerprint != encoder.fingerprint():
        raise UserError(
            f"{folder} was encoded by {meta.encoder_fingerprint}, not by the given encoder {encoder.fingerprint()}: "
            "build it again with build_collection, or load it with its own encoder"
        )
    if damaged := first_damaged(folder, meta.files):
        raise UserError(f"{folder / damaged} is missing or damaged: {_mend(folder, damaged)}")
    try:
        return Collection(meta, Corpus(folder), read_index(folder, meta.index))
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"the index of {folder} cannot be opened ({error}): {_mend(folder, 'index/')}") from error


def _mend(folder: pathlib.Path, damaged: str) -> str:
    if damaged in (FILE_NAME, VECTORS):
        return "build the collection again with lcrag.retrieval.build_collection"
    return f'rebuild it with lcrag.retrieval.rebuild_index("{folder}")'
