"""A collection: the passages, vectors, index and `meta.json` of one language.

It consists of parts, each with passages, vectors and an index of its own: the folder itself or its folders
`part0`, `part1`, ..., and `added0`, `added1`, ... for passages added after the build. A search merges their results.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.retrieval.corpus import FILE_NAME, Corpus
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.folders import first_damaged, readable
from lcrag.retrieval.index import VECTORS, Index, IndexFacts, index_bytes, read_index
from lcrag.retrieval.index_tuning import best_of
from lcrag.retrieval.passages import Hit, Passage
from lcrag.retrieval.wire import combined_fingerprint, part_name

META = "meta.json"
PART, ADDED = "part", "added"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """Content of `meta.json`: fingerprints of content and encoder, the index, and checksums of the files.

    Attributes:
      language: Its code.
      count: Passages.
      fingerprint: Hash of the passages; of a collection in several parts, hash of their fingerprints.
      encoder_fingerprint: Fingerprint of the encoder of the vectors.
      dimension: Width of the vectors.
      index: Properties of the index; of a collection in several parts, of the one with the smallest recall.
      files: Sizes and checksums of the files; empty if the parts have them.
      source: Source and settings of a collection built from shards; empty otherwise.
      parts: Number of parts.
      folded: Sources of the additions that a rebuild has joined with the rest.
    """

    language: str
    count: int
    fingerprint: str
    encoder_fingerprint: str
    dimension: int
    index: IndexFacts
    files: dict[str, dict[str, int]]
    source: str = ""
    parts: int = 1
    folded: Sequence[str] = ()


def write_meta(folder: pathlib.Path, meta: CollectionMeta) -> None:
    (folder / META).write_text(json.dumps(dataclasses.asdict(meta), indent=2) + "\n")


def read_meta(folder: str | pathlib.Path) -> CollectionMeta:
    """Reads the `meta.json` of the collection in `folder`.

    Raises:
      UserError: It has no readable `meta.json`.
    """
    path = readable(folder) / META
    try:
        values = json.loads(path.read_text())
        return CollectionMeta(**{**values, "index": IndexFacts(**values["index"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: build the collection again with build_collection") from error


def part_folders(folder: pathlib.Path, parts: int) -> dict[str, pathlib.Path]:
    """Returns the folders of a collection's parts, by name: first those of the build, then the additions."""
    built = {f"{PART}{number}": folder / f"{PART}{number}" for number in range(parts)} if parts > 1 else {PART: folder}
    numbers = itertools.takewhile(lambda number: (folder / f"{ADDED}{number}" / META).exists(), itertools.count())
    return built | {f"{ADDED}{number}": folder / f"{ADDED}{number}" for number in numbers}


def fingerprint_of(folder: str | pathlib.Path) -> str:
    """Returns the fingerprint of a collection with its additions; nothing is opened."""
    parts = part_folders(readable(folder), read_meta(folder).parts)
    return combined_fingerprint({name: read_meta(path).fingerprint for name, path in parts.items()})


@dataclasses.dataclass(frozen=True)
class Part:
    """Passages of a collection that share an index."""

    meta: CollectionMeta
    corpus: Corpus
    index: Index


class Passages(Sequence[Passage]):
    """The passages of several parts, one after the other."""

    def __init__(self, corpora: Sequence[Corpus]):
        self._corpora = corpora

    def __len__(self) -> int:
        return sum(map(len, self._corpora))

    def __getitem__(self, row):
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        for corpus in self._corpora:
            if row < len(corpus):
                break
            row -= len(corpus)
        return corpus[row]

    def __iter__(self) -> Iterator[Passage]:
        return itertools.chain.from_iterable(self._corpora)


class Collection:
    """One language's passages and their indexes.

    Args:
      meta: Metadata of the whole collection.
      parts: The opened parts, by name; other hosts may search the rest.
      whole: Whether these are all parts.
    """

    def __init__(self, meta: CollectionMeta, parts: dict[str, Part], whole: bool = True):
        self.meta, self.parts, self.whole = meta, parts, whole

    @functools.cached_property
    def corpus(self) -> Passages:
        """The passages of the opened parts."""
        return Passages([part.corpus for part in self.parts.values()])

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the opened parts, additions included."""
        return combined_fingerprint({name: part.meta.fingerprint for name, part in self.parts.items()})

    def hashes(self) -> dict[str, str]:
        """Returns the fingerprint of the collection, or of each opened part if others are elsewhere, by name."""
        language, parts = self.meta.language, self.meta.parts
        if self.whole:
            return {f"collection/{language}": self.fingerprint}
        return {part_name(language, name, parts): part.meta.fingerprint for name, part in self.parts.items()}

    def hits(self, queries: Float[np.ndarray, "queries width"], k: int) -> list[list[Hit]]:
        """Returns the best passages of each query vector over all opened parts, best first."""
        found = [part.index.search(queries, k) for part in self.parts.values()]
        firsts = np.cumsum([0, *(len(part.corpus) for part in self.parts.values())])
        rows = np.hstack([np.where(own < 0, -1, own + first) for (own, _), first in zip(found, firsts, strict=False)])
        scores = np.hstack([own for _, own in found])
        if len(found) > 1:
            scores, rows = best_of(scores, rows, min(k, scores.shape[1]))
        return [
            [self._hit(row, score) for row, score in zip(*each, strict=True) if row >= 0]
            for each in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def _hit(self, row: int, score: float) -> Hit:
        passage = self.corpus[row]
        return Hit(id=passage.id, title=passage.title, text=passage.text, score=score, language=self.meta.language)


def open_collection(folder: str | pathlib.Path, encoder: Encoder, parts: Sequence[int] | None = None) -> Collection:
    """Checks and opens one language's collection.

    Args:
      folder: The collection's folder.
      encoder: The encoder of its vectors.
      parts: Numbers of the parts to open; additions are opened with part 0. None: all.

    Raises:
      UserError: A file is missing or damaged, the vectors belong to another encoder, or there is no such part.
    """
    folder = readable(folder)
    meta = read_meta(folder)
    if meta.encoder_fingerprint != encoder.fingerprint():
        raise UserError(
            f"{folder} was encoded by {meta.encoder_fingerprint}, not by the given encoder {encoder.fingerprint()}: "
            "build it again with build_collection, or load it with its own encoder"
        )
    chosen, whole = _chosen_parts(folder, meta, parts)
    return Collection(meta, {name: _open_part(path, folder) for name, path in chosen.items()}, whole)


def _chosen_parts(
    folder: pathlib.Path, meta: CollectionMeta, parts: Sequence[int] | None
) -> tuple[dict[str, pathlib.Path], bool]:
    """Returns the folders of the parts to open, and whether these are all."""
    every = part_folders(folder, meta.parts)
    if parts is None or meta.parts == 1:
        return every, True
    wrong = [str(number) for number in parts if not 0 <= number < meta.parts]
    if wrong or not parts:
        named = ", ".join(wrong) or "none"
        raise UserError(f"load_collections.parts: {folder} has parts 0 to {meta.parts - 1}, not {named}")
    names = {f"{PART}{number}" for number in parts} | {name for name in every if name.startswith(ADDED) and 0 in parts}
    chosen = {name: path for name, path in every.items() if name in names}
    return chosen, len(chosen) == len(every)


def _open_part(folder: pathlib.Path, collection: pathlib.Path) -> Part:
    meta = read_meta(folder)
    if damaged := first_damaged(folder, meta.files):
        raise UserError(f"{folder / damaged} is missing or damaged: {_remedy(collection, damaged)}")
    try:
        return Part(meta, Corpus(folder), read_index(folder, meta.index))
    except (ValueError, RuntimeError, OSError) as error:
        remedy = _remedy(collection, "index/")
        raise UserError(f"the index of {folder} cannot be opened ({error}): {remedy}") from error


def _remedy(folder: pathlib.Path, damaged: str) -> str:
    if damaged in (FILE_NAME, VECTORS):
        return "build the collection again with lcrag.retrieval.build_collection"
    return f'rebuild it with lcrag.retrieval.rebuild_index("{folder}")'


def collection_bytes(folder: str | pathlib.Path, parts: Sequence[int] | None = None) -> int:
    """Returns the bytes of memory that the indexes of a collection need once open; passages stay on disk."""
    folder = readable(folder)
    if not (folder / META).exists():
        return 0
    metas = map(read_meta, _chosen_parts(folder, read_meta(folder), parts)[0].values())
    return sum(index_bytes(meta.index, meta.files) for meta in metas)
