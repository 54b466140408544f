"""How the benchmarks beside this file time a piece of work."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work gives, and its seconds; it must wait for the devices itself."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def median_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds of `work` over repeats, after one call that compiles and is not counted."""
    work()
    return statistics.median(timed(work)[1] for _ in range(repeats))
