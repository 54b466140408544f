"""The client of servers that speak Search-R1's `/retrieve` API: one language and one collection at each address."""

import urllib.parse
from collections.abc import Mapping, Sequence

from lcrag.errors import UserError
from lcrag.retrieval.passages import Hit
from lcrag.retrieval.remote.collections import Pair, cut
from lcrag.retrieval.remote.lcrag_service import read_hits
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, HttpService, Patience


class SearchR1Servers:
    """A Search-R1-style server for each language. They are sent no languages, and nothing is known of their content.

    Args:
      urls: Language -> address, with or without the path `/retrieve`.
      patience: How long each is waited for.
      queries: Most in one request.
      connections: Requests at a time, all servers together.

    Raises:
      UserError: there is no address.
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
        """The addresses: such servers do not say what they hold."""
        return {f"collection/{language}": f"unknown, at {url}" for language, url in self._urls.items()}

    def batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Requests of many queries in one language."""
        languages = dict.fromkeys(language for _, language in pairs)
        by_language = [[pair for pair in pairs if pair[1] == language] for language in languages]
        return [request for same in by_language for request in cut(same, self._queries)]

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """One request; all pairs are of one language.

        Raises:
          UserError: the server is away, or is none.
          ServiceRefusal: it will not answer this request.
        """
        languages = [language for _, language in pairs]
        url = self._urls[languages[0]]
        payload = {"queries": [query for query, _ in pairs], "topk": k, "return_scores": True}
        service = self._services[url]
        return read_hits(service.post(url, payload), service.name, languages, k)


def retrieve_url(url: str) -> str:
    """An address with the path `/retrieve`, unless it has another already."""
    path = urllib.parse.urlsplit(url).path
    return url if path.strip("/") else f"{url.rstrip('/')}/retrieve"
