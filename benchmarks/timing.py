"""Timing functions of the benchmarks, and the rows in which they report to `against_peers.sh`. No dependencies."""

import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")
ROWS = "LCRAG_BENCHMARK_ROWS"


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Returns the result of `work` and its seconds; `work` must wait for the devices itself."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def repeated(work: Callable[[], object], repeats: int = 5) -> list[float]:
    """Returns the seconds of each repeat of `work`, after a warm-up call that compiles."""
    work()
    return [timed(work)[1] for _ in range(repeats)]


def median_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Returns the median seconds of `work` over repeats, after a warm-up call that compiles."""
    return statistics.median(repeated(work, repeats))


def report(work: str, side: str, seconds: Sequence[float], amount: float = 1.0, unit: str = "runs", **more) -> None:
    """Appends a JSON row to the file that the environment variable `LCRAG_BENCHMARK_ROWS` names, if it is set.

    Args:
      work: What was done, equal for all sides.
      side: Who did it: "lcrag", "floor" (the least time by the machine's rates) or a peer with its version.
      seconds: Of each repeat.
      amount: Of work in one repeat, in `unit`.
      unit: As in "sampled tokens".
      more: Anything else of interest, such as recall.
    """
    if path := os.environ.get(ROWS):
        row = {"work": work, "side": side, "seconds": list(seconds), "amount": amount, "unit": unit, **more}
        with pathlib.Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
