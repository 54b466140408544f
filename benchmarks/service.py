"""Measures the cost of HTTP and the gain of batching: `python benchmarks/service.py`, on an idle machine.

Searches the atlas's collections in three ways and prints medians as JSON lines: calls in this process; one client with
requests of many queries; many clients with requests of one query, with and without batching.
"""

import argparse
import concurrent.futures
import json

import httpx2
from support.local_server import served
from timing import median_seconds

from lcrag.composition.collections import atlas_collections
from lcrag.retrieval import Collections
from lcrag.retrieval.service import make_application

PASSAGES = 3


def post(client: httpx2.Client, url: str, queries: list[str], languages: list[str]) -> None:
    body = {"queries": queries, "languages": languages, "topk": PASSAGES, "return_scores": True}
    client.post(f"{url}/retrieve", json=body).raise_for_status()


def many_clients(collections: Collections, queries: list[str], languages: list[str], clients: int, batch: int) -> float:
    """Returns queries per second, with one query per request."""
    application = make_application(collections, batch_queries=batch)
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    with (
        served(application) as url,
        httpx2.Client(limits=limits, timeout=60.0) as client,
        concurrent.futures.ThreadPoolExecutor(clients) as pool,
    ):

        def ask() -> None:
            list(pool.map(lambda pair: post(client, url, [pair[0]], [pair[1]]), zip(queries, languages, strict=True)))

        return len(queries) / median_seconds(ask)


def one_client(collections: Collections, queries: list[str], languages: list[str]) -> float:
    """Returns queries per second, with all queries in one request."""
    with served(make_application(collections)) as url, httpx2.Client(timeout=60.0) as client:
        return len(queries) / median_seconds(lambda: post(client, url, queries, languages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--clients", type=int, default=64)
    arguments = parser.parse_args()
    collections = atlas_collections()
    languages = [collections.languages[number % len(collections.languages)] for number in range(arguments.queries)]
    queries = [f"currency of country {number}" for number in range(arguments.queries)]
    here = arguments.queries / median_seconds(lambda: collections.search(queries, languages, PASSAGES))
    there = one_client(collections, queries, languages)
    batched, single = (many_clients(collections, queries, languages, arguments.clients, batch) for batch in (512, 1))
    print(json.dumps({"in_process_queries_per_second": here, "one_request": there, "share_kept": there / here}))
    print(
        json.dumps({"clients": arguments.clients, "batched": batched, "not_batched": single, "gain": batched / single})
    )


if __name__ == "__main__":
    main()
