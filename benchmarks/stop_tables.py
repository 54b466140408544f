"""Times the tables of a tokenizer: bytes of tokens and the stop automaton; and encoding, relative to `tokenizers`.

    python benchmarks/stop_tables.py --folder=Qwen2.5-3B-Instruct --rows=151936

Prints one line of JSON. `encode_ratio` compares both sides in the same run.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

from timing import timed

from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.policy import load_tokenizer
from lcrag.sampling.stop import StopTable

STOPS = (("</search>", "</answer>"), ("</answer>",), ("</subAnswer>", "</subPlan>", "</original_evidence>"))
TEXT = "The franc was the currency of France until 2002. Валюта Японии: 円 (JPY).\n" * 400
REPEATS = 5


def best(work: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest of several repeats after a warm-up."""
    return min([timed(work)[1] for _ in range(REPEATS + 1)][1:])


def tables(folder: str, rows: int | None) -> dict[str, float]:
    """Returns the seconds of each step from a folder to the stop automaton of a sampler."""
    tokenizer, loading = timed(lambda: load_tokenizer(folder))
    known, bytes_of_tokens = timed(lambda: tokenizer.token_bytes)
    padded = [*known, *[b""] * ((rows or len(known)) - len(known))]
    stops, empty = timed(lambda: StopTable(padded))
    first, *others = (timed(lambda stop=stop: stops.start(stop))[1] for stop in STOPS)
    remembered = timed(lambda: StopTable(padded).start(STOPS[0]))[1]
    plain = best(lambda: tokenizer.backend.encode(TEXT, add_special_tokens=False).ids)
    return {
        "rows": len(padded),
        "seconds/load": loading,
        "seconds/token_bytes": bytes_of_tokens,
        "seconds/first_stop_set": empty + first,
        "seconds/next_stop_set": max(others),
        "seconds/remembered_stop_set": remembered,
        "encode_ratio": best(lambda: tokenizer.encode_ordinary(TEXT, continues=True)) / plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=str(SHIPPED_FOLDER), help="a folder with tokenizer.json")
    parser.add_argument("--rows", type=int, help="rows of the model's embedding; default: the tokenizer's own")
    options = parser.parse_args()
    print(json.dumps(tables(options.folder, options.rows)))


if __name__ == "__main__":
    main()
