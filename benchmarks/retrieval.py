"""Times retrieval: `python benchmarks/retrieval.py [--vectors=200000] [--width=256] [--faiss=DIR]`, on an idle machine.

Prints JSON lines: texts per second of the atlas's encoder, then for each type of re-ranking vectors the time to build
an index, its memory, recall@10 against exact search, and queries per second, all queries in one search and 64 at a
time. `--faiss` names a folder with faiss-cpu (`pip install --target=DIR --no-deps faiss-cpu`): fast-scan with exact
re-ranking and HNSW, each with the least work that reaches recall .95 on these queries, timed in turns with ours.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
from timing import median_seconds, timed

from lcrag.atlas import build_world
from lcrag.retrieval import IndexSettings, load_encoder
from lcrag.retrieval.index import VECTORS, Quantize, exact_search, index_bytes, read_index, write_index
from lcrag.retrieval.passages import passage_text

ENCODER = pathlib.Path(__file__).parent.parent / "lcrag" / "atlas" / "weights" / "encoder"
QUERIES, TOGETHER, RECALL, TURNS = 2048, 64, 0.95, 5
Search = Callable[[np.ndarray], np.ndarray]  # queries -> rows of the best 10


@dataclasses.dataclass(frozen=True)
class Searcher:
    name: str
    search: Search
    about: dict[str, float | str]


def encoding() -> dict[str, float]:
    encoder = load_encoder(ENCODER)
    texts = [passage_text(passage) for passage in build_world(seed=0).passages("fr")]
    bulk = median_seconds(lambda: encoder.encode(texts, "passage"))
    single = median_seconds(lambda: encoder.encode(texts[:1], "query"))
    return {"passages_per_second": len(texts) / bulk, "milliseconds_single_query": 1e3 * single}


def mixture(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns unit vectors and queries of 2,000 overlapping clusters, whose variance falls as 1/i by dimension.

    Embeddings of texts have such a spectrum; with white noise clusters are so far apart that every index finds all.
    """
    generator = np.random.default_rng(0)
    spectrum = np.arange(1, width + 1) ** -0.5
    spectrum = (spectrum / np.linalg.norm(spectrum)).astype(np.float32)
    rotation = np.linalg.qr(generator.standard_normal((width, width)))[0].astype(np.float32)

    def drawn(rows: int) -> np.ndarray:
        return (generator.standard_normal((rows, width), dtype=np.float32) * spectrum) @ rotation

    centres = drawn(max(10, count // 100))
    vectors = centres[generator.integers(0, len(centres), count + QUERIES)] + 0.8 * drawn(count + QUERIES)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[:count], vectors[count:]


def ours(vectors: np.ndarray, quantize: Quantize) -> Searcher:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.save(folder / VECTORS, vectors)
        facts, seconds = timed(lambda: write_index(folder, IndexSettings(quantize=quantize)))
        index, memory = read_index(folder, facts), index_bytes(folder, facts)
    about = {
        "leaves": facts.leaves,
        "leaves_to_search": facts.leaves_to_search,
        "reordered": facts.reordered,
        "recall_when_built": facts.recall,
        "build_seconds": seconds,
        "index_mebibytes": memory / 2**20,
    }
    return Searcher(f"lcrag {quantize}", lambda queries: index.search(queries, 10)[0], about)


def theirs(folder: str, vectors: np.ndarray, queries: np.ndarray, wanted: np.ndarray) -> list[Searcher]:
    """Returns FAISS's indexes with the least work that reaches the recall on these queries."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads would slow the others' turns
    sys.path.append(folder)
    import faiss

    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    width, product = vectors.shape[1], faiss.METRIC_INNER_PRODUCT

    def chosen(name: str, index, training: int, worker, parameter: str) -> Searcher:
        _, seconds = timed(lambda: (index.train(vectors[:training]), index.add(vectors)))
        search: Search = lambda asked: index.search(asked, 10)[1]  # noqa: E731
        for work in (4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256):
            setattr(worker, parameter, work)
            if recall_of(search(queries), wanted) >= RECALL:
                break
        return Searcher(name, search, {"work": work, "build_seconds": seconds})

    def fast_scan(leaves: int) -> Searcher:
        index = faiss.index_factory(width, f"IVF{leaves},PQ{width // 2}x4fs,RFlat", product)
        index.k_factor = 10
        coarse = faiss.downcast_index(index.base_index)
        return chosen(f"FAISS IVF{leaves} fast-scan", index, 40 * leaves, coarse, "nprobe")

    graph = faiss.IndexHNSWFlat(width, 32, product)
    return [fast_scan(1024), fast_scan(2048), chosen("FAISS HNSW32", graph, 1, graph.hnsw, "efSearch")]


def recall_of(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((found[:, :, None] == wanted[:, None, :]).any(axis=1).mean())


def compared(searchers: list[Searcher], queries: np.ndarray, wanted: np.ndarray) -> Iterator[dict]:
    """Times all searchers in turns, in one search of all queries and in searches of `TOGETHER`."""
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(TURNS + 1):
        for searcher in searchers:
            for together in (len(queries), TOGETHER):
                parts = [queries[start : start + together] for start in range(0, len(queries), together)]
                _, took = timed(lambda parts=parts, searcher=searcher: [searcher.search(part) for part in parts])
                seconds.setdefault((searcher.name, together), []).append(took)
    for searcher in searchers:
        rates = {
            f"queries_per_second_{together}": len(queries) / statistics.median(seconds[searcher.name, together][1:])
            for together in (len(queries), TOGETHER)
        }
        recall = recall_of(searcher.search(queries), wanted)
        yield {"index": searcher.name, "recall_at_10": recall} | rates | searcher.about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--faiss")
    arguments = parser.parse_args()
    print(json.dumps(rounded(encoding())), flush=True)
    vectors, queries = mixture(arguments.vectors, arguments.width)
    wanted = exact_search(vectors, queries, 10)
    searchers = [ours(vectors, quantize) for quantize in get_args(Quantize)]
    if arguments.faiss:
        searchers += theirs(arguments.faiss, vectors, queries, wanted)
    rows = list(compared(searchers, queries, wanted))
    for row in rows:
        print(json.dumps(rounded(row)))
    best = [row for row in rows if row["index"].startswith("FAISS") and row["recall_at_10"] >= RECALL]
    for name in [name for name in rows[0] if name.startswith("queries")] if best else ():
        fastest = max(row[name] for row in rows if row["index"].startswith("lcrag") and row["recall_at_10"] >= RECALL)
        print(json.dumps({f"{name}_to_best_faiss": round(fastest / max(row[name] for row in best), 3)}))


def rounded(row: dict) -> dict:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


if __name__ == "__main__":
    main()
