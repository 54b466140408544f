"""Trees of ScaNN indexes, and the choice of their search settings: the least work that reaches a recall.

Work is counted, not timed, so the same vectors always give the same index.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from lcrag.retrieval.scann_library import native_messages_silenced, scann

RECALL_AT = 10
_MEASURED_QUERIES = 1024
_REORDERED = (20, 30, 40, 60, 80, 100, 150, 200)
_LEAST_SAMPLE, _SAMPLE_PER_LEAF = 100_000, 40
# Re-ranking a candidate takes as long as reading this many bytes of codes per dimension (measured at width 256).
_CANDIDATE_BYTES = 8
_BLOCK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Work:
    """Search settings of a tree, which determine the work of a query.

    Attributes:
      leaves_to_search: Leaves of the tree that it visits.
      reordered: Candidates that it re-ranks.
    """

    leaves_to_search: int
    reordered: int


@dataclasses.dataclass(frozen=True)
class Trial:
    """A measured setting that reaches the wanted recall (or the largest setting).

    Attributes:
      leaves_to_search, reordered: See `Work`.
      recall: Measured recall@10.
      kilobytes: Work of a query, as the size of codes that take as long to read, in 1000 bytes.
    """

    leaves_to_search: int
    reordered: int
    recall: float
    kilobytes: float


Search: TypeAlias = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def leaves_for(count: int) -> int:
    """Returns the number of leaves of a tree over `count` vectors."""
    return round(4 * math.sqrt(count))


def build_tree(vectors: Float[np.ndarray, "vectors width"], leaves: int, quantize: str) -> Any:
    """Returns a ScaNN searcher: a tree, asymmetric hashing in its leaves, and re-ranking."""
    library = scann()
    kinds = library.scann_builder.ReorderType
    stored = {"none": kinds.FLOAT32, "bfloat16": kinds.BFLOAT16, "int8": kinds.INT8}[quantize]
    builder = library.builder(vectors, RECALL_AT, "dot_product")
    # Vectors have length 1, so centres do too. ScaNN's default, at least 50 vectors of the sample in a leaf, would
    # merge small clusters. Together they give the same recall with a third of the leaves.
    sample = min(len(vectors), max(_LEAST_SAMPLE, _SAMPLE_PER_LEAF * leaves))
    builder = builder.tree(leaves, leaves, training_sample_size=sample, spherical=True, min_partition_size=1)
    builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100, quantize=stored)
    with native_messages_silenced():
        return builder.build()


def choose_work(
    searching: Callable[[Work], Search],
    vectors: Float[np.ndarray, "vectors width"],
    leaves: int,
    wanted_recall: float,
) -> list[Trial]:
    """Returns settings that reach the wanted recall, the one with the least work first.

    The queries are passages, excluded from their own results. Recall must exceed the wanted one by two standard
    errors, because other queries find slightly less than passages from which the tree was built.
    """
    count, width = vectors.shape
    own = np.random.default_rng(0).choice(count, min(_MEASURED_QUERIES, count), replace=False)
    own.sort()
    queries = np.asarray(vectors[own])
    exact = exact_search(vectors, queries, RECALL_AT + 1)

    def trial(visited: int, reordered: int) -> tuple[Trial, bool]:
        rows, _ = searching(Work(visited, reordered))(queries, RECALL_AT + 1)
        shares = _shares_found(rows, exact, own)
        recall, error = float(shares.mean()), float(shares.std() / math.sqrt(len(shares)))
        read = width * (visited * count / leaves / 4 + reordered * _CANDIDATE_BYTES)
        return Trial(visited, reordered, recall, round(read / 1000, 1)), recall - 2 * error >= wanted_recall

    found: list[Trial] = []
    for reordered in _REORDERED:
        most, enough = trial(leaves, reordered)
        if not enough and reordered != _REORDERED[-1]:
            continue
        found.append(_fewest_leaves(functools.partial(trial, reordered=reordered), most) if enough else most)
    return sorted(found, key=lambda each: each.kilobytes)


def _fewest_leaves(trial: Callable[[int], tuple[Trial, bool]], most: Trial) -> Trial:
    """Returns the trial with the fewest leaves that is still good enough, by bisection up to a sixteenth."""
    low, best = 0, most
    while best.leaves_to_search - low > max(1, best.leaves_to_search // 16):
        tried, enough = trial((low + best.leaves_to_search) // 2)
        if enough:
            best = tried
        else:
            low = tried.leaves_to_search
    return best


def exact_search(
    vectors: Float[np.ndarray, "vectors width"], queries: Float[np.ndarray, "queries width"], k: int
) -> Int[np.ndarray, "queries k"]:
    """Returns rows of the `k` largest inner products, best first, by matrix products over blocks of vectors."""
    best_scores = np.empty((len(queries), 0), np.float32)
    best_rows = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        scores = queries @ np.asarray(vectors[start : start + _BLOCK]).T
        rows = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        best_scores, best_rows = best_of(np.hstack((best_scores, scores)), np.hstack((best_rows, rows)), k)
    return best_rows


def best_of(
    scores: Float[np.ndarray, "queries found"], rows: Int[np.ndarray, "queries found"], k: int
) -> tuple[Float[np.ndarray, "queries k"], Int[np.ndarray, "queries k"]]:
    """Returns the `k` best scores of each query, best first, and their rows; equal ones in the order of columns."""
    if scores.shape[1] > 4 * k:
        kept = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
        scores, rows = np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _shares_found(
    rows: Int[np.ndarray, "queries found"], exact: Int[np.ndarray, "queries wanted"], own: Int[np.ndarray, " queries"]
) -> Float[np.ndarray, " queries"]:
    """Returns each query's share of exact neighbours that were found, without the query's own row."""
    wanted = exact != own[:, None]
    wanted &= np.cumsum(wanted, axis=1) <= RECALL_AT
    hit = (rows[:, :, None] == exact[:, None, :]).any(axis=1)
    return (hit & wanted).sum(axis=1) / wanted.sum(axis=1)
