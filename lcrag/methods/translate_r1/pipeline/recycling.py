"""Recycling: a source that a stage removed is replaced by another one, until a language has its quota (Section 3.2)."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Tried(Generic[Result]):
    """An attempt to fill a place.

    Attributes:
      place: Number of the place, from 0.
      attempt: Which attempt for this place, from 1.
      result: What came of it.
    """

    place: int
    attempt: int
    result: Result


async def fill(
    pool: Iterable[Item],
    places: int,
    attempts: int,
    attempt: Callable[[Item], Awaitable[Result]],
    passed: Callable[[Result], bool],
    *,
    width: int,
) -> list[Tried[Result]]:
    """Fills places from a pool whose items are used once each, in their order.

    In every round each place still empty gets the next item, so that what is tried depends on the pool and the results
    alone, and not on which of them came first.

    Args:
      pool: The items.
      places: How many are wanted.
      attempts: For a place at most.
      attempt: Tries an item.
      passed: Whether the result fills its place.
      width: Attempts under way at a time.

    Returns:
      All attempts, round by round in the order of their places.
    """
    left, empty, tried = iter(pool), list(range(places)), []
    for number in range(1, attempts + 1):
        dealt = list(zip(empty, left, strict=False))
        results = await each_of([item for _, item in dealt], attempt, width=width)
        tried += [Tried(place, number, result) for (place, _), result in zip(dealt, results, strict=True)]
        filled = {place for (place, _), result in zip(dealt, results, strict=True) if passed(result)}
        empty = [place for place in empty if place not in filled]
        if not empty or not dealt:
            break
    return tried


async def each_of(items: Sequence[Item], do: Callable[[Item], Awaitable[Result]], *, width: int) -> list[Result]:
    """`do` of every item, in order, at most `width` of them at a time; after a failure nothing new is begun.

    Raises:
      Exception: the first that an item raised.
    """
    results: dict[int, Result] = {}
    numbered = iter(enumerate(items))

    async def work() -> None:
        for number, item in numbered:
            results[number] = await do(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(width, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[number] for number in range(len(items))]
