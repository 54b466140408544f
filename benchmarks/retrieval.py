"""Times retrieval: `python benchmarks/retrieval.py [--vectors=200000] [--width=256]`, on an idle machine.

Prints medians over repeats as JSON lines: texts per second of the atlas's encoder, the time to build an index, and
queries per second with measured recall@10, compared with exact search in NumPy.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np
from timing import median_seconds, timed

from lcrag.atlas import build_world
from lcrag.retrieval import load_encoder
from lcrag.retrieval.index import VECTORS, read_index, write_index
from lcrag.retrieval.index_tuning import exact_search
from lcrag.retrieval.passages import passage_text

ENCODER = pathlib.Path(__file__).parent.parent / "lcrag" / "atlas" / "weights" / "encoder"
QUERIES = 1000


def encoding() -> dict[str, float]:
    encoder = load_encoder(ENCODER)
    texts = [passage_text(passage) for passage in build_world(seed=0).passages("fr")]
    bulk = median_seconds(lambda: encoder.encode(texts, "passage"))
    single = median_seconds(lambda: encoder.encode(texts[:1], "query"))
    return {"passages_per_second": len(texts) / bulk, "milliseconds_single_query": 1e3 * single}


def searching(count: int, width: int) -> dict[str, float | str]:
    """Searches clustered unit vectors, similar to text embeddings, with queries from the same clusters."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(count // 100, width))
    vectors = centres[generator.integers(0, len(centres), count + QUERIES)]
    vectors = vectors + 0.7 * generator.normal(size=vectors.shape)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    stored, queries = vectors[:count], vectors[count:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.save(folder / VECTORS, stored)
        facts, built = timed(lambda: write_index(folder))
        index = read_index(folder, facts)
        approximate = median_seconds(lambda: index.search(queries, 10))
        exact = median_seconds(lambda: exact_search(stored, queries, 10), repeats=1)
        found, wanted = index.search(queries, 10)[0], exact_search(stored, queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), wanted.tolist(), strict=True)])
    return {
        "vectors": count,
        "kind": facts.kind,
        "build_and_measure_seconds": built,
        "queries_per_second": QUERIES / approximate,
        "recall_at_10": float(recall),
        "numpy_exact_queries_per_second": QUERIES / exact,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    rows = (encoding(), searching(20_000, arguments.width), searching(arguments.vectors, arguments.width))
    for row in rows:
        print(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}))


if __name__ == "__main__":
    main()
