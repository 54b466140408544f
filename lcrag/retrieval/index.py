"""ScaNN indexes (Guo et al. 2020, arXiv:1908.10396): exact for small collections, otherwise approximate and measured.

The vectors are stored once, in `vectors.npy`; an approximate index adds a folder `index`, which refers to them unless
it contains a smaller quantized copy. Its search settings are the least work that reaches a recall. Work is counted, not
timed, so the choice does not depend on the load of the machine. ScaNN builds a tree on several threads: two builds from
the same vectors differ a little.
"""

import dataclasses
import importlib
import importlib.util
import math
import os
import pathlib
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gin
import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError, typed

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

    recall: float = 0.95  # required recall@10 against exact search, as measured
    quantize: Quantize = "none"
    leaves: int | None = None  # of the tree; None: by the number of vectors

    def __post_init__(self) -> None:
        if not 0.0 < self.recall < 1.0:
            raise UserError(f"IndexSettings.recall is {self.recall}: it must be between 0 and 1")
        if self.leaves is not None and self.leaves < 1:
            raise UserError(f"IndexSettings.leaves is {self.leaves}: a tree has at least one leaf")


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

    tried = _measure_work(searcher, vectors, leaves, settings.recall)
    target = folder / INDEX
    target.mkdir()
    searcher.serialize(str(target), relative_path=True)
    # The index refers to `vectors.npy` instead of a copy of the float32 vectors.
    (target / "dataset.npy").unlink(missing_ok=True)
    assets = target / "scann_assets.pbtxt"
    assets.write_text(assets.read_text().replace('"dataset.npy"', f'"../{VECTORS}"'))
    chosen = {name: tried[0][name] for name in ("leaves_to_search", "reordered", "recall")}
    return IndexFacts(kind="tree", leaves=leaves, quantize=settings.quantize, tried=tried, **chosen)


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


def _measure_work(
    searcher: Any, vectors: Float[np.ndarray, "vectors width"], leaves: int, wanted_recall: float
) -> tuple[dict[str, Any], ...]:
    """Returns settings that reach the wanted recall, the one with the least work first; see `IndexFacts.tried`.

    The queries are passages, excluded from their own results. Recall must exceed the wanted one by two standard
    errors, because other queries find slightly less than passages from which the tree was built.
    """
    count, width = vectors.shape
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
        read = width * (leaves_to_search * count / leaves / 4 + reordered * _CANDIDATE_BYTES)
        setting = {"leaves_to_search": leaves_to_search, "reordered": reordered}
        measured = {"recall": recall, "kilobytes": round(read / 1000, 1)}
        return setting | measured, recall - 2 * error >= wanted_recall

    sufficient: list[dict[str, Any]] = []
    for reordered in _REORDERED:
        best, enough = measure(leaves, reordered)
        if not enough and reordered != _REORDERED[-1]:
            continue
        # The fewest leaves that are still good enough, by bisection up to a sixteenth.
        low = 0
        while enough and best["leaves_to_search"] - low > max(1, best["leaves_to_search"] // 16):
            tried, good = measure((low + best["leaves_to_search"]) // 2, reordered)
            if good:
                best = tried
            else:
                low = tried["leaves_to_search"]
        sufficient.append(best)
    return tuple(sorted(sufficient, key=lambda tried: tried["kilobytes"]))


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
