"""Concurrent requests share searches, and none of them can tell."""

import asyncio

import pytest

from lcrag.retrieval.service.batching import Overloaded, SearchBatcher
from lcrag.testing.pretended_collections import PretendedCollections


@pytest.fixture
def collections():
    return PretendedCollections()


def batcher(collections, **options):
    options = {"window_seconds": 0.0, "batch_queries": 100, "waiting_queries": 100} | options
    return SearchBatcher(collections.search, **options)


def test_a_batch_is_one_search_and_each_gets_its_own(collections):
    async def ask():
        async with batcher(collections) as batch:
            return await asyncio.gather(
                batch.search(["a", "b"], ["en", "fi"], 2),
                batch.search(["c"], ["zh"], 2),
                batch.search(["a"], ["fi"], 2),
            )

    answers = asyncio.run(ask())
    assert collections.calls == [(["a", "b", "c", "a"], ["en", "fi", "zh", "fi"], 2)]
    hits = collections.hits
    assert answers == [[hits("a", "en", 2), hits("b", "fi", 2)], [hits("c", "zh", 2)], [hits("a", "fi", 2)]]


def test_other_numbers_of_passages_are_searched_apart(collections):
    async def ask():
        async with batcher(collections) as batch:
            return await asyncio.gather(*(batch.search(["a"], ["en"], k) for k in (1, 3, 1)))

    assert [len(found[0]) for found in asyncio.run(ask())] == [1, 3, 1]
    assert [(queries, k) for queries, _, k in collections.calls] == [(["a", "a"], 1), (["a"], 3)]


def test_batches_have_a_size(collections):
    async def ask():
        async with batcher(collections, batch_queries=4) as batch:
            await asyncio.gather(*(batch.search([f"{n}", "x"], ["en", "en"], 1) for n in range(5)))

    asyncio.run(ask())
    assert [len(queries) for queries, *_ in collections.calls] == [4, 4, 2]


def test_a_request_that_breaks_the_search_fails_alone(collections):
    async def ask():
        async with batcher(collections) as batch:
            return await asyncio.gather(
                *(batch.search([query], ["en"], 1) for query in ("a", "break", "b")), return_exceptions=True
            )

    first, broken, second = asyncio.run(ask())
    assert (first, second) == ([collections.hits("a", "en", 1)], [collections.hits("b", "en", 1)])
    assert isinstance(broken, RuntimeError)


def test_a_search_that_answers_too_little_is_an_error():
    async def ask():
        async with SearchBatcher(lambda *_: [], window_seconds=0, batch_queries=9, waiting_queries=9) as batch:
            await batch.search(["a"], ["en"], 1)

    with pytest.raises(RuntimeError):
        asyncio.run(ask())


def test_whoever_went_away_is_not_searched_for(collections):
    async def ask():
        async with batcher(collections) as batch:
            collections.gate.clear()
            first = asyncio.create_task(batch.search(["a"], ["en"], 1))
            while not collections.calls:
                await asyncio.sleep(0.001)
            gone, stays = (asyncio.create_task(batch.search([query], ["en"], 1)) for query in ("gone", "stays"))
            await asyncio.sleep(0.001)
            gone.cancel()
            collections.gate.set()
            await asyncio.gather(first, stays)

    asyncio.run(ask())
    assert [queries for queries, *_ in collections.calls] == [["a"], ["stays"]]


def test_too_many_waiting(collections):
    async def ask():
        async with batcher(collections, waiting_queries=3) as batch:
            collections.gate.clear()
            first = asyncio.create_task(batch.search(["a"], ["en"], 1))
            while not collections.calls:
                await asyncio.sleep(0.001)
            second = asyncio.create_task(batch.search(["b"] * 9, ["en"] * 9, 1))  # more than may wait, but none does
            await asyncio.sleep(0.001)
            with pytest.raises(Overloaded, match="9 queries are waiting"):
                await batch.search(["c"], ["en"], 1)
            collections.gate.set()
            await asyncio.gather(first, second)
            assert await batch.search(["c"], ["en"], 1)

    asyncio.run(ask())


def test_it_runs_between_enter_and_exit(collections):
    async def ask():
        batch = batcher(collections)
        before = batch.running
        async with batch:
            during = batch.running
        return before, during, batch.running

    assert asyncio.run(ask()) == (False, True, False)
