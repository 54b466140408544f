"""Collections of a retrieval service: `lcrag serve`, or a server with Search-R1's protocol."""

import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence

import httpx2
import pydantic

from lcrag.errors import UserError
from lcrag.retrieval import wire
from lcrag.retrieval.passages import Hit
from lcrag.retrieval.remote.collections import Pair, cut, cut_by_language
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, HttpService, Patience, ServiceRefusal, shown

# A client started before its server should fail soon.
_FIRST_ATTEMPTS = 3


class LcragService:
    """A service started by `lcrag serve`; queries are cut to the length that it accepts.

    Args:
      url: Its address, `http://HOST:PORT`.
      languages: Languages to use; None: all of its collections.
      patience: Timeouts and retries.
      queries: Largest number of queries per request, within the service's own limit.
      connections: Concurrent requests; the service batches them into one search.

    Attributes:
      hashes: Its hashes of encoder and collections, by name.

    Raises:
      UserError: There is no such service, or it lacks a language.
    """

    def __init__(
        self,
        url: str,
        languages: Sequence[str] | None = None,
        patience: Patience = USUAL_PATIENCE,
        queries: int = 256,
        connections: int = 4,
    ):
        self._url, self.connections = url.rstrip("/").removesuffix("/retrieve"), connections
        self._service = HttpService(f"the retrieval service at {self._url}", patience, connections)
        described = self._describe(dataclasses.replace(patience, attempts=min(_FIRST_ATTEMPTS, patience.attempts)))
        wanted = described.languages if languages is None else languages
        if missing := sorted(set(wanted) - set(described.languages)):
            raise UserError(
                f"{self._service.name} has no collection in {missing[0]!r}: there are {', '.join(described.languages)}"
            )
        self.languages: tuple[str, ...] = tuple(wanted)
        self.most_passages: int | None = described.most_passages
        self._queries = min(queries, described.most_queries)
        self._characters = described.most_query_characters
        self.hashes, self._content = described.hashes, wire.digest(described.hashes)

    def content_hashes(self) -> dict[str, str]:
        """Returns the service's hashes of its encoder and of the collections in use."""
        used = {f"collection/{language}" for language in self.languages}
        return {
            name: value for name, value in self.hashes.items() if name in used or not name.startswith("collection/")
        }

    def batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        return cut(pairs, self._queries)

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request (see `Backend.fetch`); changed collections are a UserError."""
        languages = [language for _, language in pairs]
        queries = [query[: self._characters] for query, _ in pairs]
        payload = {"queries": queries, "languages": languages, "topk": k, "return_scores": True}
        response = self._service.post(f"{self._url}/retrieve", payload)
        if response.headers.get(wire.CONTENT_HEADER, self._content) != self._content:
            raise UserError(
                f"the collections of {self._service.name} have changed since this command began: serve the earlier"
                " ones, or start again"
            )
        return read_hits(response, self._service.name, languages, k)

    def check_health(self) -> None:
        """Raises a UserError if the service does not answer, or has stopped."""
        self._service.get(f"{self._url}/healthz")

    def _describe(self, patience: Patience) -> wire.Description:
        try:
            response = HttpService(self._service.name, patience).get(f"{self._url}/collections")
            return wire.Description.model_validate_json(response.content)
        except ServiceRefusal as error:
            raise UserError(f"{error}: it cannot list its collections: look at its log") from error
        except pydantic.ValidationError as error:
            raise UserError(
                f"{self._service.name} does not describe its collections ({wire.first_problem(error)}): is it a"
                " Search-R1 server, which search_r1_collections is for?"
            ) from error


def read_hits(response: httpx2.Response, name: str, languages: Sequence[str], k: int) -> list[list[Hit]]:
    """Reads the hits of an answer; another API than `/retrieve` is a UserError."""
    try:
        return wire.hits_of(response.content, languages, k)
    except ValueError as error:
        raise UserError(f"{name} does not implement the /retrieve API ({error}): check its address") from error


class SearchR1Servers:
    """One server with Search-R1's protocol for each language; its content is unknown.

    Args:
      urls: Language -> address, with or without the path `/retrieve`.
      patience: Timeouts and retries.
      queries: Largest number of queries per request.
      connections: Concurrent requests to all servers together.

    Raises:
      UserError: There is no address.
    """

    most_passages: int | None = None

    def __init__(
        self,
        urls: Mapping[str, str],
        patience: Patience = USUAL_PATIENCE,
        queries: int = 256,
        connections: int = 4,
    ):
        if not urls:
            raise UserError("search_r1_collections.urls is empty: give an address for each language")
        self._urls = {language: retrieve_url(url) for language, url in urls.items()}
        self._services = {
            url: HttpService(f"the retrieval server at {url}", patience, connections) for url in self._urls.values()
        }
        self._queries, self.connections = queries, connections
        self.languages: tuple[str, ...] = tuple(urls)

    def content_hashes(self) -> dict[str, str]:
        """Returns the addresses: such servers do not describe their content."""
        return {f"collection/{language}": f"unknown, at {shown(url)}" for language, url in self._urls.items()}

    def batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Returns requests of many queries in one language."""
        return cut_by_language(pairs, self._queries)

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request, whose pairs have one language (see `Backend.fetch`)."""
        languages = [language for _, language in pairs]
        url = self._urls[languages[0]]
        payload = {"queries": [query for query, _ in pairs], "topk": k, "return_scores": True}
        service = self._services[url]
        return read_hits(service.post(url, payload), service.name, languages, k)


def retrieve_url(url: str) -> str:
    """Adds the path `/retrieve` to an address without a path."""
    path = urllib.parse.urlsplit(url).path
    return url if path.strip("/") else f"{url.rstrip('/')}/retrieve"
