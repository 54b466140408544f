"""Collections: the passages, vectors, index and `meta.json` of one language, and sets of such collections.

A collection consists of parts, each with passages, vectors and an index of its own: the folder itself or its folders
`part0`, `part1`, ..., and `added0`, `added1`, ... for passages added after the build. A search merges their results.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.files import local_files
from lcrag.retrieval.corpus import FILE_NAME, Corpus
from lcrag.retrieval.encoder import Devices, Encoder
from lcrag.retrieval.encoder_folder import load_encoder
from lcrag.retrieval.folders import first_damaged, readable
from lcrag.retrieval.index import VECTORS, Index, IndexFacts, index_bytes, read_index
from lcrag.retrieval.index_tuning import best_of
from lcrag.retrieval.passages import Hit, Passage
from lcrag.retrieval.wire import combined_fingerprint, part_name

META = "meta.json"
ENCODER = "encoder"
PART, ADDED = "part", "added"
_LOGGER = logging.getLogger(__name__)
_WORTH_SAYING_BYTES = 1 << 30  # they take a while to read


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """Content of `meta.json`: fingerprints of content and encoder, the index, and checksums of the files.

    Attributes:
      language: Its code.
      count: Passages.
      fingerprint: Of the passages; of a collection in several parts, of their fingerprints.
      encoder_fingerprint: Of the encoder of the vectors.
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
      meta: Of the whole collection.
      parts: The opened parts, by name; not all of them where other hosts search the rest.
      whole: Whether these are all.
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
      parts: Numbers of the parts to open, additions with part 0; None: all. Of a collection in one part, that one.

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


class Collections:
    """The collections of several languages with one batched search; thread-safe."""

    def __init__(self, encoder: Encoder, collections: dict[str, Collection]):
        self.encoder, self._collections = encoder, collections
        self._threads = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="search")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that have a collection, sorted."""
        return tuple(sorted(self._collections))

    def content_hashes(self) -> dict[str, str]:
        """Returns fingerprints of the encoder and of each collection, by name."""
        hashes = {"encoder": self.encoder.fingerprint()}
        for _, collection in sorted(self._collections.items()):
            hashes |= collection.hashes()
        return hashes

    def collection(self, language: str) -> Collection:
        """Returns the collection of a language.

        Raises:
          UserError: The language has none.
        """
        if language not in self._collections:
            present = ", ".join(self.languages)
            raise UserError(f"no collection in language {language!r}: there are {present}; build it or choose another")
        return self._collections[language]

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first.

        Distinct queries are encoded in one batch, and each language's index answers one batch.

        Raises:
          UserError: A language has no collection, or k is not positive.
        """
        if k < 1:
            raise UserError(f"a search for {k} passages finds nothing: ask for at least one")
        pairs = list(dict.fromkeys(zip(queries, languages, strict=True)))
        for language in dict.fromkeys(languages):
            self.collection(language)
        texts = list(dict.fromkeys(query for query, _ in pairs))
        vectors = dict(zip(texts, self.encoder.encode(texts, kind="query"), strict=True))
        found: dict[tuple[str, str], list[Hit]] = {}

        def search_language(language: str) -> None:
            asked = [pair for pair in pairs if pair[1] == language]
            hits = self.collection(language).hits(np.stack([vectors[query] for query, _ in asked]), k)
            found.update(zip(asked, hits, strict=True))

        distinct = list(dict.fromkeys(languages))
        searches = self._threads.map(search_language, distinct) if len(distinct) > 1 else map(search_language, distinct)
        list(searches)
        return [list(found[pair]) for pair in zip(queries, languages, strict=True)]


def load_collections(
    folder: str | pathlib.Path,
    encoder: Encoder | None = None,
    languages: Sequence[str] | None = None,
    parts: Sequence[int] | None = None,
    devices: Devices = "all",
) -> Collections:
    """Opens every language's collection in `folder` (or the one collection that `folder` itself is).

    Args:
      folder: Written by `build_collection`.
      encoder: Embeds queries; None: the encoder in the folder.
      languages: Languages to open; None: all.
      parts: Parts to open of languages in several parts, where other hosts search the rest; None: all.
      devices: Where the encoder in the folder encodes; see `lcrag.retrieval.encoder.rows_mesh`.

    Raises:
      UserError: There is no collection, one is damaged or belongs to another encoder, or the memory does not suffice.
    """
    folder = local_files(folder).absolute()
    if (readable(folder) / META).exists():
        root, present = folder.parent, [folder.name]
    else:
        root, present = folder, _languages_in(folder)
    if not present:
        raise UserError(f"no collection in {folder}: build one with `lcrag index`, or name another folder")
    if missing := sorted(set(languages or ()) - set(present)):
        raise UserError(f"load_collections.languages: no collection {missing[0]!r} in {folder}: {', '.join(present)}")
    chosen = list(dict.fromkeys(languages or present))
    _check_memory(sum(collection_bytes(root / language, parts) for language in chosen), root)
    encoder = load_encoder(root / ENCODER, devices=devices) if encoder is None else encoder
    with concurrent.futures.ThreadPoolExecutor() as pool:
        opened = pool.map(lambda language: open_collection(root / language, encoder, parts), chosen)
        return Collections(encoder, dict(zip(chosen, opened, strict=True)))


def collection_bytes(folder: str | pathlib.Path, parts: Sequence[int] | None = None) -> int:
    """Returns the bytes of memory that the indexes of a collection need once open; passages stay on disk."""
    folder = readable(folder)
    if not (folder / META).exists():
        return 0
    metas = map(read_meta, _chosen_parts(folder, read_meta(folder), parts)[0].values())
    return sum(index_bytes(meta.index, meta.files) for meta in metas)


def _check_memory(needed_bytes: int, root: pathlib.Path) -> None:
    """Says how much memory the indexes need, where it is a GiB or more; a UserError if this machine has less."""
    there = memory_bytes()
    level = logging.WARNING if needed_bytes >= _WORTH_SAYING_BYTES else logging.INFO
    needed, has = (f"{number / 2**30:.1f}" for number in (needed_bytes, there))
    _LOGGER.log(level, "opening the indexes of %s: %s GiB of this machine's %s GiB of memory", root, needed, has)
    if needed_bytes > there:
        raise UserError(
            f"the indexes of {root} need {needed} GiB of memory, and this machine has {has}: open fewer with"
            " load_collections.languages or load_collections.parts, or rebuild them with IndexSettings.quantize = 'int8'"
        )


def memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that has a smaller limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine


def _languages_in(root: pathlib.Path) -> list[str]:
    """Returns the languages with a folder, including those whose replacement was killed half-way."""
    if not root.is_dir():
        return []
    names = {path.name.removeprefix(".").removesuffix(".previous") for path in root.iterdir() if path.is_dir()}
    return sorted(name for name in names if any((readable(root / name) / file).exists() for file in (META, FILE_NAME)))
