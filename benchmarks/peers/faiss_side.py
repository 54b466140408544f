"""FAISS on the vectors of lcrag's retrieval: python benchmarks/peers/faiss_side.py retrieval|hnsw

Each index is searched at rising effort, and the first setting that reaches the recall counts.
"""

import os
from collections.abc import Callable, Iterable

import faiss
import numpy as np
import work  # makes the folder of `timing` known; stays first
from timing import repeated, report, timed

faiss.omp_set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
INNER = faiss.METRIC_INNER_PRODUCT


def measure(name: str, build: Callable[[], tuple], efforts: Iterable[int]) -> None:
    """Reports the queries a second of an index at the least effort that reaches the recall.

    Args:
      name: The index.
      build: Returns the index, and a function that sets its effort.
      efforts: In rising order.
    """
    stored, queries, near = work.vectors()
    (index, set_effort), built = timed(lambda: build(stored))

    def search() -> np.ndarray:
        parts = range(0, len(queries), work.QUERY_BATCH)
        return np.concatenate(
            [index.search(queries[place : place + work.QUERY_BATCH], work.NEIGHBOURS)[1] for place in parts]
        )

    for effort in efforts:
        set_effort(effort)
        found = work.recall(search(), near)
        if found >= work.RECALL:
            break
    side = f"FAISS {faiss.__version__} {name}, {effort}"
    seconds = repeated(search, work.REPEATS)
    report(work.RETRIEVAL, side, seconds, len(queries), "queries", recall=found, build_seconds=built)


def fast_scan(stored: np.ndarray) -> tuple:
    index = faiss.index_factory(stored.shape[1], f"IVF{128 if work.SMOKE else 1024},PQ128x4fs,RFlat", INNER)
    lists = faiss.downcast_index(index.base_index)
    lists.cp.niter, index.k_factor = 10, 10
    index.train(stored[:50_000])
    index.add(stored)
    return index, lambda effort: setattr(lists, "nprobe", effort)


def hnsw(stored: np.ndarray) -> tuple:
    index = faiss.IndexHNSWFlat(stored.shape[1], 32, INNER)
    index.hnsw.efConstruction = 40
    index.add(stored)
    return index, lambda effort: setattr(index.hnsw, "efSearch", effort)


if __name__ == "__main__":
    work.run(
        {
            "retrieval": lambda: measure("IVF fast-scan, re-ranked", fast_scan, (2, 4, 6, 8, 12, 16, 24, 32, 64)),
            "hnsw": lambda: measure("HNSW32", hnsw, (16, 24, 32, 48, 64, 96, 128, 256)),
        }
    )
