"""ScaNN indexes (Guo et al. 2020, arXiv:1908.10396): exact for small collections, otherwise approximate and measured.

The vectors are stored once, in `vectors.npy`; an approximate index adds a folder `index`, which refers to them unless
it contains a smaller quantized copy.
"""

import dataclasses
import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from lcrag.limits import Count, InnerShare, check_fields
from lcrag.retrieval.index_tuning import RECALL_AT, Work, build_tree, choose_work, leaves_for
from lcrag.retrieval.scann_library import scann

VECTORS = "vectors.npy"
INDEX = "index"
# Up to this many vectors, exact search is as fast as a tree.
LARGEST_EXACT = 20_000
_BATCH_FOR_THREADS = 64
_LARGEST_BATCH = 256
# `np.load` parses the header as Python, which two threads must not do at once before CPython 3.11.8 (gh-106905).
_READING_HEADER = threading.Lock()

Quantize: TypeAlias = Literal["none", "bfloat16", "int8"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Settings of the index of collections with more than `LARGEST_EXACT` passages.

    Attributes:
      recall: Required recall@10 against exact search, as measured.
      quantize: Type of the vectors that re-rank the candidates: "none" keeps float32; "bfloat16" halves the memory of
        an index and "int8" quarters it. Scores are then those of the rounded vectors.
      leaves: Leaves of the tree; None: by the number of vectors.
    """

    recall: InnerShare = 0.95
    quantize: Quantize = "none"
    leaves: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)


USUAL_INDEX = IndexSettings()


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexFacts:
    """Recorded properties of an index.

    Attributes:
      kind: "exact" or "tree".
      leaves_to_search: Leaves of the tree that a query visits; 0 without a tree.
      recall: Measured recall@10 against exact search, with passages of the collection as queries (excluded from their
        own neighbours); 1.0 for an exact index.
      leaves: Leaves of the tree; 0 without a tree, or unknown.
      reordered: Candidates of a query that are re-ranked.
      quantize: Type of the re-ranking vectors.
      tried: Settings that reach the wanted recall, with their `work`; the least work was chosen.
    """

    kind: str
    leaves_to_search: int
    recall: float
    leaves: int = 0
    reordered: int = 100
    quantize: Quantize = "none"
    tried: Sequence[Mapping[str, Any]] = ()


class Index:
    """A ScaNN searcher over `count` unit vectors; thread-safe."""

    def __init__(self, searcher: Any, count: int, work: Work | None = None):
        self._searcher, self.count, self._work = searcher, count, work
        self._threads = len(os.sched_getaffinity(0))
        searcher.set_num_threads(self._threads)

    def search(
        self, queries: Float[np.ndarray, "queries width"], k: int
    ) -> tuple[Int[np.ndarray, "queries found"], Float[np.ndarray, "queries found"]]:
        """Returns rows and inner products of the best `min(k, count)` vectors, best first.

        If an approximate search finds fewer, the remaining rows are -1 and their scores -inf.
        """
        found = min(k, self.count)
        if not len(queries):
            return np.empty((0, found), np.int64), np.empty((0, found), np.float32)
        rows, scores = self._search(np.ascontiguousarray(queries, np.float32), found)
        missing = np.isnan(scores)
        return np.where(missing, -1, rows.astype(np.int64)), np.where(missing, -np.inf, scores)

    def _search(self, queries: np.ndarray, found: int) -> tuple[np.ndarray, np.ndarray]:
        """Searches on all cores: a tree from two queries on, a product of matrices from `_BATCH_FOR_THREADS` on."""
        limits: dict[str, int] = {"final_num_neighbors": found}
        if self._work is not None:
            reordered = max(self._work.reordered, 2 * found)
            limits |= {"leaves_to_search": self._work.leaves_to_search, "pre_reorder_num_neighbors": reordered}
        if len(queries) <= (_BATCH_FOR_THREADS if self._work is None else 1):
            return self._searcher.search_batched(queries, **limits)
        # ScaNN gives each thread whole batches: with larger ones a few queries would stay on one thread.
        batch = min(_LARGEST_BATCH, -(-len(queries) // self._threads))
        return self._searcher.search_batched_parallel(queries, batch_size=batch, **limits)


def write_index(folder: pathlib.Path, settings: IndexSettings = USUAL_INDEX) -> IndexFacts:
    """Builds the index of the vectors in `folder` and writes its files there; returns its properties."""
    vectors = np.load(folder / VECTORS, mmap_mode="r")
    if len(vectors) <= LARGEST_EXACT:
        return IndexFacts(kind="exact", leaves_to_search=0, recall=1.0)
    leaves = min(settings.leaves or leaves_for(len(vectors)), len(vectors) // 2)
    searcher = build_tree(vectors, leaves, settings.quantize)
    searching = lambda work: Index(searcher, len(vectors), work).search  # noqa: E731
    chosen = choose_work(searching, vectors, leaves, settings.recall)
    _serialise(searcher, folder)
    return IndexFacts(
        kind="tree",
        leaves_to_search=chosen[0].leaves_to_search,
        recall=chosen[0].recall,
        leaves=leaves,
        reordered=chosen[0].reordered,
        quantize=settings.quantize,
        tried=tuple(dataclasses.asdict(each) for each in chosen),
    )


def read_index(folder: pathlib.Path, facts: IndexFacts) -> Index:
    """Opens the index of `folder`.

    Raises:
      ValueError, RuntimeError, OSError: Its files are damaged.
    """
    if facts.kind == "exact":
        with _READING_HEADER:
            vectors = np.load(folder / VECTORS, mmap_mode="r")
        return Index(scann().builder(vectors, RECALL_AT, "dot_product").score_brute_force().build(), len(vectors))
    if (folder / INDEX / "scann_docids.pkl").exists():
        raise ValueError("it holds a pickle, which could run any code")
    searcher = scann().load_searcher(str(folder / INDEX))
    return Index(searcher, searcher.size(), Work(facts.leaves_to_search, facts.reordered))


def index_bytes(facts: IndexFacts, files: Mapping[str, Mapping[str, int]]) -> int:
    """Returns the bytes of memory that an open index needs, which are those of the files that are read into it."""
    own = sum(check["bytes"] for name, check in files.items() if name.startswith(f"{INDEX}/"))
    return own + (files[VECTORS]["bytes"] if facts.quantize == "none" else 0)


def _serialise(searcher: Any, folder: pathlib.Path) -> None:
    """Writes the index without a copy of the float32 vectors: it refers to `vectors.npy`."""
    target = folder / INDEX
    target.mkdir()
    searcher.serialize(str(target), relative_path=True)
    (target / "dataset.npy").unlink(missing_ok=True)
    assets = target / "scann_assets.pbtxt"
    assets.write_text(assets.read_text().replace('"dataset.npy"', f'"../{VECTORS}"'))
