"""Web search as collections: the result pages of a search engine, one language at a time.

As in Search-R1's online search, a result's title and snippet are the passage; pages are not opened.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from lcrag.errors import UserError
from lcrag.retrieval.passages import Hit
from lcrag.retrieval.remote.collections import Pair, cut
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, HttpService, Patience, ServiceRefusal

# Both engines give at most ten results a page, and one page is asked for.
MOST_RESULTS = 10
# Codes of languages as both engines write them, where they are not ISO 639-1 (`zh` alone is refused).
_ENGINE_CODES = {"zh": "zh-CN", "he": "iw", "nb": "no"}


@dataclasses.dataclass(frozen=True)
class WebResult:
    """One result of a search engine."""

    link: str
    title: str
    snippet: str


@runtime_checkable
class WebEngine(Protocol):
    """A search engine's JSON API.

    Attributes:
      url: Its address.
    """

    @property
    def url(self) -> str: ...

    def parameters(self, query: str, language: str, count: int) -> dict[str, Any]:
        """What a GET request sends, the key included."""

    def results(self, page: Mapping[str, Any]) -> list[WebResult]:
        """The results on a page, best first.

        Raises:
          ServiceRefusal: the page says that the search failed.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class SerpApi:
    """SerpAPI (https://serpapi.com/search-api): Google's result page as JSON, its answer box first.

    Attributes:
      key: Of the account.
      engine: Which search engine SerpAPI asks.
      url: Its address.
    """

    key: str = dataclasses.field(repr=False)
    engine: str = "google"
    url: str = "https://serpapi.com/search.json"

    def parameters(self, query: str, language: str, count: int) -> dict[str, Any]:
        code = engine_code(language)
        languages = {"hl": code.lower() if code == "zh-CN" else code, "lr": f"lang_{code}"}
        return {"engine": self.engine, "q": query, "num": count, "api_key": self.key} | languages

    def results(self, page: Mapping[str, Any]) -> list[WebResult]:
        # SerpAPI says so of an empty result page, with status 200
        if "error" in page and "hasn't returned any results" not in str(page["error"]):
            raise ServiceRefusal(f"SerpAPI failed: {page['error']}")
        box = page.get("answer_box") or {}
        said = box.get("answer") or box.get("snippet")
        first = [_result({**box, "snippet": said})] if isinstance(said, str) else []
        return first + [_result(each) for each in page.get("organic_results", ())]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoogleCustomSearch:
    """Google's Custom Search JSON API (https://developers.google.com/custom-search/v1/reference/rest/v1/cse/list).

    Attributes:
      key: Of the project.
      engine_id: Of the Programmable Search Engine (`cx`).
      url: Its address.
    """

    key: str = dataclasses.field(repr=False)
    engine_id: str
    url: str = "https://www.googleapis.com/customsearch/v1"

    def parameters(self, query: str, language: str, count: int) -> dict[str, Any]:
        code = engine_code(language)
        return {"key": self.key, "cx": self.engine_id, "q": query, "num": count, "hl": code, "lr": f"lang_{code}"}

    def results(self, page: Mapping[str, Any]) -> list[WebResult]:
        return [_result(each) for each in page.get("items", ())]


class WebSearch:
    """A search engine as the collection of every language.

    Args:
      engine: Whom to ask.
      languages: In which results are wanted; each search names its own.
      patience: How long it is waited for.
      connections: Requests at a time, each of one query.
    """

    most_passages: int | None = MOST_RESULTS

    def __init__(
        self,
        engine: WebEngine,
        languages: Sequence[str],
        patience: Patience = USUAL_PATIENCE,
        connections: int = 4,
    ):
        self._engine, self.languages, self.connections = engine, tuple(languages), connections
        self._service = HttpService(f"the search engine at {engine.url}", patience, connections)

    def content_hashes(self) -> dict[str, str]:
        """The engine's address: nobody knows what the web holds."""
        return {f"collection/{language}": f"the web, by {self._engine.url}" for language in self.languages}

    def batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """A request for each query."""
        return cut(pairs, 1)

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """One request for one pair.

        Raises:
          UserError: the engine is away, refuses the key, or is no such engine.
          ServiceRefusal: it will not answer this query.
        """
        [(query, language)] = pairs
        if not query.strip():
            raise ServiceRefusal(f"{self._service.name} answers no empty query")
        response = self._service.get(self._engine.url, self._engine.parameters(query, language, k))
        try:
            results = self._engine.results(response.json())[:k]
            return [[_hit(result, language, rank) for rank, result in enumerate(results, start=1)]]
        except (ValueError, AttributeError, TypeError) as error:
            raise UserError(f"{self._service.name} answers something else than results: check its address") from error


def key_from(variable: str) -> str:
    """A key from the environment: written in a configuration it would be kept beside every result.

    Raises:
      UserError: the variable is not set.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} is not set: export {variable}=KEY")
    return key


def engine_code(language: str) -> str:
    """A language's code as search engines write it."""
    return _ENGINE_CODES.get(language, language)


def _result(item: Mapping[str, Any]) -> WebResult:
    """A result of which the engine may leave out anything."""
    return WebResult(*(item.get(name) or "" for name in ("link", "title", "snippet")))


def _hit(result: WebResult, language: str, rank: int) -> Hit:
    """Engines give no scores: it is the reciprocal of the rank."""
    title, text = (" ".join(part.split()) for part in (result.title, result.snippet))
    return Hit(id=result.link, title=title, text=text, score=1.0 / rank, language=language)
