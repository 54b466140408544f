"""Concurrent requests share searches without an effect on their answers."""

import asyncio

import pytest
from support.pretended_collections import PretendedCollections

from lcrag.retrieval.service import Batcher, Overloaded


@pytest.fixture
def collections():
    return PretendedCollections()


def batcher(collections, **options):
    options = {"window_seconds": 0.0, "batch_items": 100, "waiting_items": 100} | options
    return Batcher(
        lambda pairs, k: collections.search([query for query, _ in pairs], [code for _, code in pairs], k),
        called="queries",
        **options,
    )


def search(batch, queries, languages, k):
    return batch.ask(list(zip(queries, languages, strict=True)), k)


def test_a_batch_is_one_search_and_each_gets_its_own(collections):
    async def ask():
        batch = batcher(collections)
        return await asyncio.gather(
            search(batch, ["a", "b"], ["en", "fi"], 2),
            search(batch, ["c"], ["zh"], 2),
            search(batch, ["a"], ["fi"], 2),
        )

    answers = asyncio.run(ask())
    assert collections.calls == [(["a", "b", "c", "a"], ["en", "fi", "zh", "fi"], 2)]
    hits = collections.hits
    assert answers == [[hits("a", "en", 2), hits("b", "fi", 2)], [hits("c", "zh", 2)], [hits("a", "fi", 2)]]


def test_other_numbers_of_passages_are_searched_apart(collections):
    async def ask():
        batch = batcher(collections)
        return await asyncio.gather(*(search(batch, ["a"], ["en"], k) for k in (1, 3, 1)))

    assert [len(found[0]) for found in asyncio.run(ask())] == [1, 3, 1]
    assert [(queries, k) for queries, _, k in collections.calls] == [(["a", "a"], 1), (["a"], 3)]


def test_batches_have_a_size(collections):
    async def ask():
        batch = batcher(collections, batch_items=4)
        await asyncio.gather(*(search(batch, [f"{n}", "x"], ["en", "en"], 1) for n in range(5)))

    asyncio.run(ask())
    assert [len(queries) for queries, *_ in collections.calls] == [4, 4, 2]


def test_a_request_that_breaks_the_search_fails_alone(collections):
    async def ask():
        batch = batcher(collections)
        return await asyncio.gather(
            *(search(batch, [query], ["en"], 1) for query in ("a", "break", "b")), return_exceptions=True
        )

    first, broken, second = asyncio.run(ask())
    assert (first, second) == ([collections.hits("a", "en", 1)], [collections.hits("b", "en", 1)])
    assert isinstance(broken, RuntimeError)


def test_a_search_that_answers_too_little_is_an_error():
    async def ask():
        limits = {"window_seconds": 0, "batch_items": 9, "waiting_items": 9}
        batch = Batcher(lambda *_: [], called="questions", **limits)
        await batch.ask(["a"])

    with pytest.raises(RuntimeError, match="0 of 1 questions were answered"):
        asyncio.run(ask())


def test_a_request_larger_than_a_batch_is_searched_in_parts(collections):
    async def ask():
        batch = batcher(collections, batch_items=4)
        large = search(batch, [f"{n}" for n in range(10)], ["en"] * 10, 1)
        return await asyncio.gather(large, search(batch, ["small"], ["fi"], 1))

    large, small = asyncio.run(ask())
    assert large == [collections.hits(f"{n}", "en", 1) for n in range(10)]
    assert small == [collections.hits("small", "fi", 1)]
    assert [queries for queries, *_ in collections.calls] == [
        ["0", "1", "2", "3"],
        ["small"],  # waits for one part of the large request, not for all
        ["4", "5", "6", "7"],
        ["8", "9"],
    ]


def test_too_many_unanswered(collections):
    async def ask():
        batch = batcher(collections, waiting_items=3)
        collections.gate.clear()
        first = asyncio.create_task(search(batch, ["b"] * 9, ["en"] * 9, 1))  # more than may wait, but alone
        while not collections.calls:
            await asyncio.sleep(0.001)
        with pytest.raises(Overloaded, match="9 queries are waiting"):
            await search(batch, ["c"], ["en"], 1)
        collections.gate.set()
        await first
        assert await search(batch, ["c"], ["en"], 1)

    asyncio.run(ask())
