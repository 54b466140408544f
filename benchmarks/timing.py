"""Timing functions of the benchmarks."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Returns the result of `work` and its seconds; `work` must wait for the devices itself."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def median_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Returns the median seconds of `work` over repeats, after a warm-up call that compiles."""
    work()
    return statistics.median(timed(work)[1] for _ in range(repeats))
