"""Times retrieval: `python benchmarks/retrieval.py [--vectors=200000] [--width=256]`, on an idle machine.

Prints JSON lines: texts per second of the atlas's encoder, then for each type of re-ranking vectors the time to build
an index, its memory, recall@10 against exact search, and queries per second, all queries in one search and 64 at a
time. `bash benchmarks/against_peers.sh retrieval hnsw` compares with FAISS.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
from timing import median_seconds, timed

from lcrag.atlas import build_world
from lcrag.retrieval import IndexSettings, load_encoder
from lcrag.retrieval.collections import VECTORS, Quantize, exact_search, index_bytes, read_index, write_index
from lcrag.retrieval.passages import passage_text

ENCODER = pathlib.Path(__file__).parent.parent / "lcrag" / "atlas" / "weights" / "encoder"
QUERIES, TOGETHER, TURNS = 2048, 64, 5
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
    arguments = parser.parse_args()
    print(json.dumps(rounded(encoding())), flush=True)
    vectors, queries = mixture(arguments.vectors, arguments.width)
    wanted = exact_search(vectors, queries, 10)
    searchers = [ours(vectors, quantize) for quantize in get_args(Quantize)]
    for row in compared(searchers, queries, wanted):
        print(json.dumps(rounded(row)))


def rounded(row: dict) -> dict:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


if __name__ == "__main__":
    main()
