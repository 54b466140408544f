"""Collections: the passages of a language, their vectors and their index in a folder; several have one search.

<folder>/encoder/                                               the encoder, so that the folder is complete
<folder>/<language>/passages.arrow vectors.npy meta.json [index/]
"""

import array
import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import pyarrow as pa
from jaxtyping import Float

from lcrag.errors import UserError, typed
from lcrag.files import local_files, readable_folder, replacing_folder, write_text
from lcrag.retrieval.encoder import Devices, Encoder, load_encoder, save_encoder
from lcrag.retrieval.index import (
    INDEX,
    USUAL_INDEX,
    VECTORS,
    IndexFacts,
    IndexSettings,
    index_bytes,
    read_index,
    write_index,
)
from lcrag.retrieval.passages import Hit, Passage, passage_text

META = "meta.json"
PASSAGES_FILE = "passages.arrow"
ENCODER = "encoder"
_PROGRESS = "progress.json"
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_PASSAGES_PER_CALL = 4096
_LARGE_BYTES = 1 << 30  # such indexes take a while to read, which a warning announces
_LOGGER = logging.getLogger(__name__)
# Rows of every record batch except the last, so a division finds a row's batch.
ROWS_PER_BATCH = 4096
_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")])


# --- Passages in one memory-mapped Arrow file ---


def write_passages(passages: Iterable[Passage], path: pathlib.Path) -> tuple[int, str]:
    """Streams passages into an Arrow IPC file; returns their number and a fingerprint of their content.

    A passage that is not valid Unicode, two with one id, or no passages are a UserError.
    """
    digest, hashes = hashlib.sha256(), array.array("q")  # of the ids
    iterator = iter(passages)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        while batch := list(itertools.islice(iterator, ROWS_PER_BATCH)):
            for passage in batch:
                try:
                    digest.update("\0".join((passage.id, passage.title, passage.text, "")).encode())
                except UnicodeEncodeError as error:
                    raise UserError(
                        f"passage {passage.id!r} is not valid Unicode (a lone surrogate): decode its source again"
                    ) from error
            columns = [[getattr(passage, name) for passage in batch] for name in _SCHEMA.names]
            arrays = [pa.array(column, pa.large_string()) for column in columns]
            writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
            hashes.extend(hash(passage.id) for passage in batch)
    if not hashes:
        raise UserError("a collection needs at least one passage, and none was given")
    # Hashes of 8 bytes fit the memory where the ids of 100 million passages would not; equal ones are looked at.
    values, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    repeated = set(values[counts > 1].tolist())
    seen: set[str] = set()
    for passage in Corpus(path.parent) if repeated else ():
        if passage.id in seen:
            raise UserError(f"two passages have the id {passage.id!r}: give every passage of a collection its own")
        if hash(passage.id) in repeated:
            seen.add(passage.id)
    return len(hashes), digest.hexdigest()[:16]


class Corpus(Sequence[Passage]):
    """The passages of a collection's folder in the order written, memory-mapped."""

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        path = self.folder / PASSAGES_FILE
        if not path.is_file():
            raise UserError(
                f"no passages in {self.folder}: expected the file {PASSAGES_FILE}; build the collection first"
            )
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
            batches = self._reader.num_record_batches
            self._count = (batches - 1) * ROWS_PER_BATCH + self._reader.get_batch(batches - 1).num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path} is damaged: build the collection again from its source") from error
        # Batches are views of the mapping; keeping some saves parsing their headers for every row.
        self._batch = functools.lru_cache(maxsize=256)(self._reader.get_batch)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row):
        """Returns the passage of a row, or the list of passages of a slice."""
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        batch, offset = self._batch(row // ROWS_PER_BATCH), row % ROWS_PER_BATCH
        return Passage(**{name: batch.column(name)[offset].as_py() for name in _SCHEMA.names})

    def __iter__(self) -> Iterator[Passage]:
        return self.rows(0, len(self))

    def rows(self, start: int, stop: int) -> Iterator[Passage]:
        """Yields the passages from row `start` up to `stop`, a batch at a time."""
        for first in range(start - start % ROWS_PER_BATCH, stop, ROWS_PER_BATCH):
            batch = self._reader.get_batch(first // ROWS_PER_BATCH)
            skipped = max(start - first, 0)
            for row in batch.slice(skipped, min(stop - first, ROWS_PER_BATCH) - skipped).to_pylist():
                yield Passage(**row)


# --- Collections in folders ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """Content of `meta.json`; `source` identifies the files and settings of the passages, if the caller gave any."""

    language: str
    count: int
    fingerprint: str
    encoder_fingerprint: str
    dimension: int
    index: IndexFacts
    source: str = ""


def read_meta(folder: str | pathlib.Path) -> CollectionMeta:
    """Reads the `meta.json` of the collection in `folder`; an unreadable one is a UserError."""
    path = readable_folder(folder) / META
    try:
        values = json.loads(path.read_text())
        # Earlier versions wrote further fields, such as checksums.
        known = {field.name: values[field.name] for field in dataclasses.fields(CollectionMeta) if field.name in values}
        return CollectionMeta(**{**known, "index": IndexFacts(**values["index"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: build the collection again") from error


def is_language_code(name: str) -> bool:
    """Whether a collection may have this name: "fi", "zh-yue", "pt_BR"."""
    return _LANGUAGE.fullmatch(name) is not None


def keep_encoder(root: pathlib.Path, encoder: Encoder) -> None:
    """Writes the encoder into the collections' folder `root`; another encoder there is a UserError."""
    folder = root / ENCODER
    if not readable_folder(folder).exists():
        save_encoder(folder, encoder)
    elif load_encoder(folder).fingerprint() != encoder.fingerprint():
        raise UserError(
            f"{root} holds collections of another encoder: build into a new folder, or delete this one first"
        )


def build_collection(
    passages: Iterable[Passage],
    encoder: Encoder,
    folder: str | pathlib.Path,
    language: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    settings: IndexSettings = USUAL_INDEX,
    *,
    source: str = "",
    records: Mapping[str, str] = types.MappingProxyType({}),
    vectors: Iterable[Float[np.ndarray, "passages width"]] | None = None,
) -> CollectionMeta:
    """Encodes and indexes the passages of one language in `<folder>/<language>`.

    Without `language`, `folder` itself is the collection and its name the language. An existing collection is replaced
    once the new one is complete. With a `source`, an interrupted build is continued by the next call: passages that
    were all written are not read again, and passages that were encoded are not encoded again.

    Args:
      encoder: Saved in `<folder>/encoder` by the first build; later builds must use the same.
      progress: Called with (passages encoded, total).
      source: Identifies everything that the content depends on.
      records: Further files of the collection's folder, name -> text.
      vectors: Vectors of the passages that have been encoded elsewhere, in blocks; None: they are encoded here.
    """
    root = pathlib.Path(folder)
    if language is None:
        root, language = root.absolute().parent, root.absolute().name
    if not is_language_code(language):
        raise UserError(f"{language!r} is not a language code: pass one, such as language='en', to build in {folder}")
    keep_encoder(root, encoder)
    with replacing_folder(root / language, keep=bool(source)) as building:
        state_path = building / _PROGRESS
        if not state_path.exists():
            count, fingerprint = write_passages(passages, building / PASSAGES_FILE)
            state: dict[str, Any] = {"source": source, "count": count, "fingerprint": fingerprint, "encoded": 0}
            write_text(state_path, json.dumps(state))
        elif (state := json.loads(state_path.read_text()))["source"] != source:
            raise UserError(
                f"{building} is the unfinished work of another configuration: continue that one, or delete the folder"
            )

        # Encode the passages after those of an interrupted build; given vectors are copied from the start.
        corpus, shape = Corpus(building), (state["count"], encoder.dimension)
        mode = "r+" if state["encoded"] else "w+"
        stored = np.lib.format.open_memmap(building / VECTORS, mode=mode, dtype=np.float32, shape=shape)
        if vectors is None:
            starts = range(state["encoded"], len(corpus), _PASSAGES_PER_CALL)
            blocks = (corpus.rows(start, min(start + _PASSAGES_PER_CALL, len(corpus))) for start in starts)
            vectors = (encoder.encode([passage_text(passage) for passage in block], "passage") for block in blocks)
        else:
            state["encoded"] = 0
        for block in vectors:
            start, state["encoded"] = state["encoded"], state["encoded"] + len(block)
            stored[start : state["encoded"]] = block
            stored.flush()  # before the progress that promises these rows
            write_text(state_path, json.dumps(state))
            progress(state["encoded"], state["count"])
        del stored

        shutil.rmtree(building / INDEX, ignore_errors=True)  # of an attempt that was killed while it indexed
        meta = CollectionMeta(
            language=language,
            count=state["count"],
            fingerprint=state["fingerprint"],
            encoder_fingerprint=encoder.fingerprint(),
            dimension=encoder.dimension,
            index=write_index(building, settings),
            source=source,
        )
        files = {META: json.dumps(dataclasses.asdict(meta), indent=2) + "\n", **records}
        for name, text in files.items():
            (building / name).write_text(text, encoding="utf-8")
        state_path.unlink()
    return meta


class Collection:
    """The open collection of one language."""

    def __init__(self, folder: str | pathlib.Path, encoder: Encoder):
        folder = readable_folder(folder)
        self.meta = meta = read_meta(folder)
        if meta.encoder_fingerprint != encoder.fingerprint():
            raise UserError(
                f"{folder} was encoded by {meta.encoder_fingerprint}, not by the given encoder"
                f" {encoder.fingerprint()}: build it again with build_collection, or load it with its own encoder"
            )
        self.corpus = Corpus(folder)
        try:
            self.index = read_index(folder, meta.index)
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"the index of {folder} cannot be opened ({error}): build the collection again") from error
        if not len(self.corpus) == self.index.count == meta.count:
            raise UserError(
                f"{folder} holds {len(self.corpus)} passages and {self.index.count} vectors, not {meta.count}: build it"
                " again"
            )

    def hits(self, queries: Float[np.ndarray, "queries width"], k: int) -> list[list[Hit]]:
        """Returns the best passages of each query vector, best first."""
        return [
            [
                Hit(**vars(self.corpus[row]), score=score, language=self.meta.language)
                for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
                if row >= 0
            ]
            for rows, scores in zip(*self.index.search(queries, k), strict=True)
        ]


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
        collections = {f"collection/{code}": self._collections[code].meta.fingerprint for code in self.languages}
        return {"encoder": self.encoder.fingerprint()} | collections

    def collection(self, language: str) -> Collection:
        """Returns the collection of a language; one that does not exist is a UserError."""
        if language not in self._collections:
            present = ", ".join(self.languages)
            raise UserError(f"no collection in language {language!r}: there are {present}; build it or choose another")
        return self._collections[language]

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first.

        Distinct queries are encoded in one batch, and each language's index answers one batch.
        """
        if k < 1:
            raise UserError(f"a search for {k} passages finds nothing: ask for at least one")
        by_language: dict[str, list[str]] = {}
        for query, language in dict.fromkeys(zip(queries, languages, strict=True)):
            by_language.setdefault(language, []).append(query)
        for language in by_language:
            self.collection(language)  # a missing one is an error before anything is encoded
        texts = list(dict.fromkeys(queries))
        vectors = dict(zip(texts, self.encoder.encode(texts, kind="query"), strict=True))

        def search_language(language: str) -> list[list[Hit]]:
            asked = np.stack([vectors[query] for query in by_language[language]])
            return self.collection(language).hits(asked, k)

        run = self._threads.map if len(by_language) > 1 else map
        results: dict[tuple[str, str], list[Hit]] = {}
        for language, hits in zip(by_language, run(search_language, by_language), strict=True):
            results |= zip([(query, language) for query in by_language[language]], hits, strict=True)
        return [list(results[pair]) for pair in zip(queries, languages, strict=True)]


def load_collections(
    folder: str | pathlib.Path,
    encoder: Encoder | None = None,
    languages: Sequence[str] | None = None,
    devices: Devices = "all",
) -> Collections:
    """Opens every language's collection in `folder`, or the one collection that `folder` itself is.

    Without `encoder` the one in the folder embeds queries, on `devices` (see `lcrag.retrieval.encoder.rows_mesh`).
    """
    folder = local_files(folder).absolute()
    if (readable_folder(folder) / META).exists():
        root, present = folder.parent, [folder.name]
    else:
        # Languages whose replacement was killed half-way have their earlier content in a hidden folder.
        paths = folder.iterdir() if folder.is_dir() else ()
        names = {path.name.removeprefix(".").removesuffix(".previous") for path in paths if path.is_dir()}
        root, present = folder, sorted(name for name in names if (readable_folder(folder / name) / META).exists())
    if not present:
        raise UserError(f"no collection in {folder}: build one with `lcrag index`, or name another folder")
    if missing := sorted(set(languages or ()) - set(present)):
        raise UserError(f"load_collections.languages: no collection {missing[0]!r} in {folder}: {', '.join(present)}")
    chosen = list(dict.fromkeys(languages or present))

    # A machine without the memory would swap for hours, or kill the process without a word.
    needed_bytes, available_bytes = sum(collection_bytes(root / language) for language in chosen), memory_bytes()
    needed, available = (f"{number / 2**30:.1f}" for number in (needed_bytes, available_bytes))
    if needed_bytes > available_bytes:
        raise UserError(
            f"the indexes of {root} need {needed} GiB of memory, and this machine has {available}: open fewer with"
            " load_collections.languages, or build them with IndexSettings.quantize = 'int8'"
        )
    level = logging.WARNING if needed_bytes >= _LARGE_BYTES else logging.INFO
    _LOGGER.log(level, "opening the indexes of %s: %s GiB of this machine's %s GiB of memory", root, needed, available)

    opened_encoder = load_encoder(root / ENCODER, devices=devices) if encoder is None else encoder
    with concurrent.futures.ThreadPoolExecutor() as pool:
        opened = pool.map(lambda language: Collection(root / language, opened_encoder), chosen)
        return Collections(opened_encoder, dict(zip(chosen, opened, strict=True)))


configured_collections = gin.external_configurable(
    typed(load_collections), "load_collections", module="lcrag.retrieval"
)


def kept_collections(
    root: pathlib.Path, encoder: Encoder, languages: Sequence[str], passages: Callable[[str], Iterable[Passage]]
) -> Collections:
    """Opens the collections of an encoder in a folder; those that do not exist are built from `passages(language)`."""
    for language in languages:
        if not (root / language).exists():
            build_collection(passages(language), encoder, root, language=language)
    return load_collections(root, encoder)


def cache_folder() -> pathlib.Path:
    """Returns the folder where collections that can be rebuilt are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "lcrag" / "collections-2"


def collection_bytes(folder: str | pathlib.Path) -> int:
    """Returns the bytes of memory that the index of a collection needs once open; passages stay on disk."""
    return index_bytes(readable_folder(folder), read_meta(folder).index)


def memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that has a smaller limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine
