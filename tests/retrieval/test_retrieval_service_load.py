"""Many concurrent clients: every reply belongs to its query, and none is lost."""

import asyncio
import dataclasses
import pathlib
import re
import subprocess
import sys
import time

import httpx2
import numpy as np
import pytest
from support.local_server import served
from support.pretended_collections import PretendedCollections

from lcrag.atlas.collections import atlas_collections
from lcrag.retrieval import wire
from lcrag.retrieval.service import make_application

PASSAGES = 3


def latencies(url, clients, requests, expected, seconds=float("inf")):
    """Seconds of every request of concurrent clients, each of which checks its replies.

    Args:
      url: The service's address.
      clients: How many.
      requests: Most of a client.
      expected: Number of a request among all -> (query, language, ids of its passages).
      seconds: When clients start no further request.
    """
    deadline = time.monotonic() + seconds

    async def client(connections, number):
        taken = []
        for turn in range(requests):
            if time.monotonic() > deadline:
                break
            query, language, ids = expected(number * requests + turn)
            body = {"queries": [query], "languages": [language], "topk": PASSAGES, "return_scores": True}
            start = time.monotonic()
            answer = await connections.post(f"{url}/retrieve", json=body)
            taken.append(time.monotonic() - start)
            [hits] = wire.hits_of(answer.raise_for_status().content, [language], PASSAGES)
            assert [(hit.id, hit.language) for hit in hits] == [(each, language) for each in ids], query
        return taken

    async def all_clients():
        limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
        async with httpx2.AsyncClient(limits=limits, timeout=60.0) as connections:
            return await asyncio.gather(*(client(connections, number) for number in range(clients)))

    return np.concatenate(asyncio.run(all_clients()))


class Labelled(PretendedCollections):
    """Its passages' ids name their query."""

    def hits(self, query, language, k):
        return [dataclasses.replace(hit, id=f"{query} {hit.id}") for hit in super().hits(query, language, k)]


def test_every_reply_belongs_to_its_query():
    def expected(number):
        query, language = f"query {number}", ("en", "fi", "zh")[number % 3]
        return query, language, [f"{query} {language}-{rank}" for rank in range(PASSAGES)]

    collections = Labelled()
    with served(make_application(collections)) as url:
        assert latencies(url, 32, 16, expected).size == 32 * 16
        assert httpx2.get(f"{url}/healthz").json()["unanswered"] == 0
    searched = [query for queries, *_ in collections.calls for query in queries]
    assert sorted(searched) == sorted(f"query {number}" for number in range(32 * 16)), "each was searched once"
    assert len(collections.calls) < 32 * 16, "clients share searches"


def resident_mb(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.slow
def test_two_hundred_clients_for_a_minute():
    """Prints the figures of docs/service.md: run with -s."""
    collections = atlas_collections()
    languages = [collections.languages[number % len(collections.languages)] for number in range(2000)]
    queries = [f"currency of country {number}" for number in range(2000)]
    found = collections.search(queries, languages, PASSAGES)

    def expected(number):
        number %= len(queries)
        return queries[number], languages[number], [hit.id for hit in found[number]]

    words = ["-m", "lcrag.main", "serve", "--gin.serve.collections=@atlas_collections()", "--gin.serve.port=0"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"at (http://127.0.0.1:\d+)/retrieve", server.stdout.readline())[1]
            latencies(url, 200, 5, expected)
            before = resident_mb(server)
            taken = latencies(url, 200, 10_000, expected, seconds=60.0)
            growth = resident_mb(server) - before
        finally:
            server.terminate()
            server.wait(30)
    p50, p99 = np.percentile(taken, (50, 99))
    print(f"\n{taken.size} requests of 200 clients: p50 {p50:.3f} s, p99 {p99:.3f} s; memory +{growth:.0f} MB")
    assert growth < 200
