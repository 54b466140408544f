"""Loads the search service: `python benchmarks/service.py` starts `lcrag serve` with the built-in world.

200 clients ask one query at a time for a minute; every reply is compared with a search in this process. Prints the
latency and the growth of the server's memory.
"""

import asyncio
import pathlib
import re
import subprocess
import sys
import time

import httpx2
import numpy as np

from lcrag.atlas.world import atlas_collections
from lcrag.retrieval import remote

PASSAGES = 3


def latencies(url, clients, requests, expected, seconds=float("inf")):
    """Returns the seconds of every request of concurrent clients, each of which checks its replies.

    `expected` maps the number of a request among all to (query, language, ids of its passages). Clients start no
    further request after `requests` of them, or after `seconds`.
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
            [hits] = remote.hits_of(answer.raise_for_status().content, [language], PASSAGES)
            assert [(hit.id, hit.language) for hit in hits] == [(name, language) for name in ids], query
        return taken

    async def all_clients():
        limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
        async with httpx2.AsyncClient(limits=limits, timeout=60.0) as connections:
            return await asyncio.gather(*(client(connections, number) for number in range(clients)))

    return np.concatenate(asyncio.run(all_clients()))


def resident_mb(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def main() -> None:
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


if __name__ == "__main__":
    main()
