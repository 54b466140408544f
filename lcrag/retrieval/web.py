"""Web search as collections: the results of a search engine in each language.

As in Search-R1's online search, the title and snippet of a result are the passage; pages are not opened.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gin

from lcrag.errors import UserError, typed
from lcrag.retries import USUAL_PATIENCE, Patience, ServiceRefusal
from lcrag.retrieval.passages import Hit
from lcrag.retrieval.remote import HttpService, Pair, RemoteCollections, key_from, shown
from lcrag.rewards.text import is_visible

# Language codes of both engines that differ from ISO 639-1 (they reject `zh`).
_ENGINE_CODES = {"zh": "zh-CN", "he": "iw", "nb": "no"}


@gin.register
@typed
class SerpApi:
    """SerpAPI (https://serpapi.com/search-api): the result page of `engine` as JSON, its answer box first.

    The key is read from an environment variable.
    """

    def __init__(
        self,
        key_variable: str = "SERPAPI_API_KEY",
        engine: str = "google",
        url: str = "https://serpapi.com/search.json",
    ):
        self._key, self._engine, self.url = key_from(key_variable), engine, url

    def parameters(self, query: str, language: str, count: int) -> dict[str, Any]:
        """Returns the parameters of a GET request, including the key."""
        code = _ENGINE_CODES.get(language, language)
        languages = {"hl": code.lower() if code == "zh-CN" else code, "lr": f"lang_{code}"}
        return {"engine": self._engine, "q": query, "num": count, "api_key": self._key} | languages

    def results(self, page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Returns the results of a page (`link`, `title`, `snippet`), best first."""
        # An empty page has an error too, with status 200.
        if "error" in page and "hasn't returned any results" not in str(page["error"]):
            raise ServiceRefusal(f"SerpAPI failed: {page['error']}")
        box = page.get("answer_box") or {}
        text = box.get("answer") or box.get("snippet")
        return [*([{**box, "snippet": text}] if isinstance(text, str) else []), *page.get("organic_results", ())]


@gin.register
@typed
class GoogleCustomSearch:
    """Google's Custom Search JSON API (https://developers.google.com/custom-search/v1/reference/rest/v1/cse/list).

    The key, and the id of the Programmable Search Engine (`cx`), are read from environment variables.
    """

    def __init__(
        self,
        key_variable: str = "GOOGLE_API_KEY",
        engine_variable: str = "GOOGLE_CSE_ID",
        url: str = "https://www.googleapis.com/customsearch/v1",
    ):
        self._key, self._engine, self.url = key_from(key_variable), key_from(engine_variable), url

    def parameters(self, query: str, language: str, count: int) -> dict[str, Any]:
        code = _ENGINE_CODES.get(language, language)
        return {"key": self._key, "cx": self._engine, "q": query, "num": count, "hl": code, "lr": f"lang_{code}"}

    def results(self, page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return list(page.get("items", ()))


WebEngine: TypeAlias = SerpApi | GoogleCustomSearch


class WebSearch:
    """A search engine as the collection of every language; a `Backend` of `RemoteCollections`."""

    max_passages: int | None = 10  # results per page of both engines; one page is requested
    max_queries, one_language, connections = 1, True, 4

    def __init__(self, engine: WebEngine, languages: Sequence[str], patience: Patience = USUAL_PATIENCE):
        self._engine, self.languages = engine, tuple(languages)
        self._service = HttpService("the search engine", engine.url, patience, self.connections)

    def content_hashes(self) -> dict[str, str]:
        """Returns the engine's address in place of hashes: the content of the web is unknown."""
        return {f"collection/{language}": f"the web, by {shown(self._engine.url)}" for language in self.languages}

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request for one pair; engines give no scores, so a score is the reciprocal of the rank."""
        [(query, language)] = pairs
        if not is_visible(query):
            raise ServiceRefusal(f"{self._service.name} rejects empty queries")
        response = self._service.request("GET", self._engine.url, params=self._engine.parameters(query, language, k))
        hits = []
        try:
            for rank, result in enumerate(self._engine.results(response.json())[:k], start=1):
                title, text = (" ".join((result.get(name) or "").split()) for name in ("title", "snippet"))
                link = result.get("link") or ""
                hits.append(Hit(id=link, title=title, text=text, score=1.0 / rank, language=language))
        except (ValueError, AttributeError, TypeError) as error:
            raise UserError(f"{self._service.name} does not answer with results: check its address") from error
        return [hits]


@gin.configurable
@typed
def web_collections(
    engine: WebEngine, languages: Sequence[str], patience: Patience = USUAL_PATIENCE
) -> RemoteCollections:
    """Returns a web search engine, `@SerpApi()` or `@GoogleCustomSearch()`, as the collection of every language."""
    return RemoteCollections(WebSearch(engine, languages, patience))
