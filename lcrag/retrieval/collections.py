"""Collections: the passages of a language, their vectors and their index in a folder; several have one search.

<folder>/encoder/                                               the encoder, so that the folder is complete
<folder>/<language>/passages.arrow vectors.npy meta.json manifest.json [index/]

Indexes are ScaNN's (Guo et al. 2020, arXiv:1908.10396): exact for small collections, otherwise approximate and
measured. The vectors are stored once; an approximate index refers to them unless it contains a smaller quantized copy.
"""

import array
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
import logging
import math
import os
import pathlib
import re
import shutil
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gin
import numpy as np
import pyarrow as pa
import pydantic
from jaxtyping import Float, Int

from lcrag.errors import Count, Share, UserError, typed
from lcrag.files import (
    check_manifest,
    local_files,
    locked,
    readable_folder,
    replacing_folder,
    write_manifest,
    write_text,
)
from lcrag.retrieval.encoder import Devices, Encoder, load_encoder, save_encoder
from lcrag.retrieval.passages import Hit, Passage, passage_text

META = "meta.json"
PASSAGES_FILE = "passages.arrow"
ENCODER = "encoder"
_PROGRESS = "progress.json"
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_PASSAGES_PER_CALL = 4096
_LARGE_BYTES = 1 << 30  # such indexes take a while to read, which a warning announces
_LOGGER = logging.getLogger(__name__)
_ACTIVITY = logging.getLogger("lcrag.activity")
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


class Corpus:
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

    def __getitem__(self, row: int) -> Passage:
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


# --- Indexes: ScaNN's ---
#
# The search settings of an approximate index are the least work that reaches a recall. Work is counted, not timed, so
# the choice does not depend on the load of the machine. ScaNN builds a tree on several threads: two builds from the
# same vectors differ a little.

VECTORS = "vectors.npy"
INDEX = "index"
RECALL_AT = 10
# Up to this many vectors, exact search is as fast as a tree.
LARGEST_EXACT = 20_000
_BATCH_FOR_THREADS = 64
_LARGEST_BATCH = 256
_MEASURED_QUERIES = 1024
_REORDERED = (20, 30, 40, 60, 80, 100, 150, 200)
_MIN_SAMPLE, _SAMPLE_PER_LEAF = 100_000, 40
# Re-ranking a candidate takes as long as reading this many bytes of codes per dimension (measured at width 256).
_CANDIDATE_BYTES = 8
_BLOCK = 1 << 16
# Collections are opened on several threads: ScaNN is imported by one of them, and before CPython 3.11.8 (gh-106905) two
# must not parse Python at once, which `np.load` does with the header.
_OPENING = threading.RLock()

Quantize: TypeAlias = Literal["none", "bfloat16", "int8"]


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Settings of the index of collections with more than `LARGEST_EXACT` passages.

    Candidates are re-ranked by vectors of type `quantize`: "none" keeps float32; "bfloat16" halves the memory of an
    index and "int8" quarters it. Scores are then those of the rounded vectors.
    """

    recall: Share = 0.95  # required recall@10 against exact search, as measured
    quantize: Quantize = "none"
    leaves: Count | None = None  # of the tree; None: by the number of vectors


USUAL_INDEX = IndexSettings()


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexFacts:
    """Recorded properties of an index.

    Recall@10 is measured against exact search, with passages of the collection as queries (excluded from their own
    neighbours). `tried` are settings that reach the wanted recall (or the largest setting), the one with the least
    work, which was chosen, first. Work is the size of codes that take as long to read as a query, in `kilobytes`.
    """

    kind: str  # "exact" or "tree"
    leaves_to_search: int  # of a query; 0 without a tree
    recall: float
    leaves: int = 0
    reordered: int = 100  # candidates of a query that are re-ranked
    quantize: Quantize = "none"
    tried: Sequence[Mapping[str, Any]] = ()


class Index:
    """A ScaNN searcher over `count` unit vectors; thread-safe.

    `work` are the leaves that a query visits and the candidates that it re-ranks; None: an exact search.
    """

    def __init__(self, searcher: Any, count: int, work: tuple[int, int] | None = None):
        self._searcher, self.count, self._work = searcher, count, work
        self._threads = len(os.sched_getaffinity(0))
        searcher.set_num_threads(self._threads)

    def search(
        self, queries: Float[np.ndarray, "queries width"], k: int
    ) -> tuple[Int[np.ndarray, "queries results"], Float[np.ndarray, "queries results"]]:
        """Returns rows and inner products of the best `min(k, count)` vectors, best first.

        If an approximate search finds fewer, the remaining rows are -1 and their scores -inf.
        """
        results = min(k, self.count)
        if not len(queries):
            return np.empty((0, results), np.int64), np.empty((0, results), np.float32)
        queries = np.ascontiguousarray(queries, np.float32)
        limits: dict[str, int] = {"final_num_neighbors": results}
        if self._work is not None:
            leaves, reordered = self._work
            limits |= {"leaves_to_search": leaves, "pre_reorder_num_neighbors": max(reordered, 2 * results)}
        # All cores search: a tree from two queries on, a product of matrices from `_BATCH_FOR_THREADS` on.
        if len(queries) <= (_BATCH_FOR_THREADS if self._work is None else 1):
            rows, scores = self._searcher.search_batched(queries, **limits)
        else:
            # ScaNN gives each thread whole batches: with larger ones a few queries would stay on one thread.
            batch = min(_LARGEST_BATCH, -(-len(queries) // self._threads))
            rows, scores = self._searcher.search_batched_parallel(queries, batch_size=batch, **limits)
        missing = np.isnan(scores)
        return np.where(missing, -1, rows.astype(np.int64)), np.where(missing, -np.inf, scores)


def write_index(folder: pathlib.Path, settings: IndexSettings = USUAL_INDEX) -> IndexFacts:
    """Builds the index of the vectors in `folder` and writes its files there; returns its properties."""
    vectors = np.load(folder / VECTORS, mmap_mode="r")
    count = len(vectors)
    if count <= LARGEST_EXACT:
        return IndexFacts(kind="exact", leaves_to_search=0, recall=1.0)

    # A tree, asymmetric hashing in its leaves, and re-ranking. Vectors have length 1, so centres do too. ScaNN's
    # default, at least 50 vectors of the sample in a leaf, would merge small clusters. Together they give the same
    # recall with a third of the leaves.
    leaves = min(settings.leaves or round(4 * math.sqrt(count)), count // 2)
    sample = min(count, max(_MIN_SAMPLE, _SAMPLE_PER_LEAF * leaves))
    kinds = scann().scann_builder.ReorderType
    stored = {"none": kinds.FLOAT32, "bfloat16": kinds.BFLOAT16, "int8": kinds.INT8}[settings.quantize]
    builder = scann().builder(vectors, RECALL_AT, "dot_product")
    builder = builder.tree(leaves, leaves, training_sample_size=sample, spherical=True, min_partition_size=1)
    builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100, quantize=stored)
    # ScaNN's C++ code logs to file descriptor 2 at every log level: it is closed meanwhile.
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        searcher = builder.build()
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)

    # Settings that reach the wanted recall, the one with the least work first. The queries are passages, excluded from
    # their own results. Recall must exceed the wanted one by two standard errors, because other queries find slightly
    # less than passages from which the tree was built.
    rows = np.sort(np.random.default_rng(0).choice(count, min(_MEASURED_QUERIES, count), replace=False))
    queries = np.asarray(vectors[rows])
    exact = exact_search(vectors, queries, RECALL_AT + 1)
    wanted = exact != rows[:, None]
    wanted &= np.cumsum(wanted, axis=1) <= RECALL_AT

    def measure(leaves_to_search: int, reordered: int) -> tuple[dict[str, Any], bool]:
        results, _ = Index(searcher, count, (leaves_to_search, reordered)).search(queries, RECALL_AT + 1)
        hit = (results[:, :, None] == exact[:, None, :]).any(axis=1)
        shares = (hit & wanted).sum(axis=1) / wanted.sum(axis=1)
        recall, error = float(shares.mean()), float(shares.std() / math.sqrt(len(shares)))
        read = vectors.shape[1] * (leaves_to_search * count / leaves / 4 + reordered * _CANDIDATE_BYTES)
        setting = {"leaves_to_search": leaves_to_search, "reordered": reordered}
        measured = {"recall": recall, "kilobytes": round(read / 1000, 1)}
        return setting | measured, recall - 2 * error >= settings.recall

    tried: list[dict[str, Any]] = []
    for reordered in _REORDERED:
        best, enough = measure(leaves, reordered)
        if not enough and reordered != _REORDERED[-1]:
            continue
        # The fewest leaves that are still good enough, by bisection up to a sixteenth.
        low = 0
        while enough and best["leaves_to_search"] - low > max(1, best["leaves_to_search"] // 16):
            fewer, good = measure((low + best["leaves_to_search"]) // 2, reordered)
            if good:
                best = fewer
            else:
                low = fewer["leaves_to_search"]
        tried.append(best)
    tried.sort(key=lambda setting: setting["kilobytes"])

    target = folder / INDEX
    target.mkdir()
    searcher.serialize(str(target), relative_path=True)
    # The index refers to `vectors.npy` instead of a copy of the float32 vectors.
    (target / "dataset.npy").unlink(missing_ok=True)
    assets = target / "scann_assets.pbtxt"
    assets.write_text(assets.read_text().replace('"dataset.npy"', f'"../{VECTORS}"'))
    chosen = {name: tried[0][name] for name in ("leaves_to_search", "reordered", "recall")}
    return IndexFacts(kind="tree", leaves=leaves, quantize=settings.quantize, tried=tuple(tried), **chosen)


def read_index(folder: pathlib.Path, facts: IndexFacts) -> Index:
    """Opens the index of `folder`; a ValueError, RuntimeError or OSError says that its files are damaged."""
    if facts.kind == "exact":
        with _OPENING:
            vectors = np.load(folder / VECTORS, mmap_mode="r")
        return Index(scann().builder(vectors, RECALL_AT, "dot_product").score_brute_force().build(), len(vectors))
    if (folder / INDEX / "scann_docids.pkl").exists():
        raise ValueError("it holds a pickle, which could run any code")
    searcher = scann().load_searcher(str(folder / INDEX))
    return Index(searcher, searcher.size(), (facts.leaves_to_search, facts.reordered))


def index_bytes(folder: pathlib.Path, facts: IndexFacts) -> int:
    """Returns the bytes of memory that an open index needs, which are those of the files that are read into it."""
    read = list((folder / INDEX).glob("*")) + ([folder / VECTORS] if facts.quantize == "none" else [])
    return sum(path.stat().st_size for path in read if path.is_file())


def exact_search(
    vectors: Float[np.ndarray, "vectors width"], queries: Float[np.ndarray, "queries width"], k: int
) -> Int[np.ndarray, "queries k"]:
    """Returns rows of the `k` largest inner products, best first; equal ones in the order of rows.

    Matrix products over blocks of vectors, so vectors may be memory-mapped.
    """
    best_scores = np.empty((len(queries), 0), np.float32)
    best_rows = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        scores = queries @ np.asarray(vectors[start : start + _BLOCK]).T
        rows = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        scores, rows = np.hstack((best_scores, scores)), np.hstack((best_rows, rows))
        if scores.shape[1] > 4 * k:  # partitioning first is faster than sorting everything
            kept = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
            scores, rows = np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best_scores, best_rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    return best_rows


def scann() -> types.ModuleType:
    """Returns ScaNN's NumPy interface, without its package module, which would import TensorFlow (seconds, unused)."""
    bindings = "scann.scann_ops.py.scann_ops_pybind"
    with _OPENING:
        if bindings in sys.modules or "scann" in sys.modules:
            return importlib.import_module(bindings)
        spec = importlib.util.find_spec("scann")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("the package scann is not installed")
        package = types.ModuleType("scann")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["scann"] = package
        try:
            return importlib.import_module(bindings)
        finally:
            del sys.modules["scann"]


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
        # Further fields of earlier versions, such as checksums, are ignored.
        return pydantic.TypeAdapter(CollectionMeta).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
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
            if state["encoded"] > shape[0] or np.shape(block)[1:] != shape[1:] or not np.isfinite(block).all():
                raise UserError(
                    f"the vectors of the passages from {start} on, an array of shape {np.shape(block)}, do not fit"
                    f" {shape[0]} passages, an encoder of {shape[1]} dimensions, or are not finite: encode them again"
                )
            stored[start : state["encoded"]] = block
            stored.flush()  # before the progress that promises these rows
            write_text(state_path, json.dumps(state))
            progress(state["encoded"], state["count"])
        del stored
        if state["encoded"] != state["count"]:
            raise UserError(
                f"there are {state['encoded']} vectors for {state['count']} passages: give one for each passage"
            )

        _ACTIVITY.info("indexing %s passages in %s", f"{state['count']:,}", language)
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
        write_manifest(building, sorted(building.rglob("*")))
        Collection(building, encoder)  # opened before it takes the place of an earlier one
    return meta


class Collection:
    """The open collection of one language."""

    def __init__(self, folder: str | pathlib.Path, encoder: Encoder):
        folder = readable_folder(folder)
        self.meta = meta = read_meta(folder)
        check_manifest(folder)
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
        return tuple(sorted(self._collections))

    def content_hashes(self) -> dict[str, str]:
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
    folders = [readable_folder(root / language) for language in chosen]
    needed_bytes = sum(index_bytes(folder, read_meta(folder).index) for folder in folders)
    available_bytes = memory_bytes()
    needed, available = (f"{number / 2**30:.1f}" for number in (needed_bytes, available_bytes))
    if needed_bytes > available_bytes:
        raise UserError(
            f"the indexes of {root} need {needed} GiB of memory, and this machine has {available}: open fewer with"
            " load_collections.languages, or build them with IndexSettings.quantize = 'int8'"
        )
    level = logging.WARNING if needed_bytes >= _LARGE_BYTES else logging.INFO
    _LOGGER.log(level, "opening the indexes of %s: %s GiB of this machine's %s GiB of memory", root, needed, available)

    _ACTIVITY.info("opening the indexes of %s", root)
    opened_encoder = load_encoder(root / ENCODER, devices=devices) if encoder is None else encoder
    with concurrent.futures.ThreadPoolExecutor() as pool:
        opened = pool.map(lambda folder: Collection(folder, opened_encoder), folders)
        return Collections(opened_encoder, dict(zip(chosen, opened, strict=True)))


configured_collections = gin.external_configurable(
    typed(load_collections), "load_collections", module="lcrag.retrieval"
)


KEPT = "collections-2"  # in the folder of caches


def kept_collections(
    root: pathlib.Path, encoder: Encoder, languages: Sequence[str], passages: Callable[[str], Iterable[Passage]]
) -> Collections:
    """Opens the collections of an encoder in a folder; those that do not exist are built from `passages(language)`.

    One of several processes that need them builds them, and the others wait.
    """
    if not all((root / language).exists() for language in languages):
        root.mkdir(parents=True, exist_ok=True)
        with locked(root):
            for language in languages:
                if not (root / language).exists():
                    build_collection(passages(language), encoder, root, language=language)
    return load_collections(root, encoder)


def memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that has a smaller limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine
