"""Collections that are searched elsewhere: by `lcrag serve`, Search-R1 servers and search engines of the web."""

from collections.abc import Mapping, Sequence

import gin

from lcrag.retrieval.remote import (
    USUAL_PATIENCE,
    GoogleCustomSearch,
    LcragService,
    Patience,
    RemoteCollections,
    SearchR1Servers,
    SerpApi,
    WebEngine,
    WebSearch,
    key_from,
)

gin.register(Patience, module="lcrag.retrieval")


@gin.configurable
def remote_collections(
    url: str,
    languages: Sequence[str] | None = None,
    patience: Patience = USUAL_PATIENCE,
) -> RemoteCollections:
    """The collections that `lcrag serve` serves at an address.

    Args:
      url: `http://HOST:PORT`.
      languages: Those to use; None: all.
      patience: How long the service is waited for.
    """
    return RemoteCollections(LcragService(url, languages, patience))


@gin.configurable
def search_r1_collections(
    urls: Mapping[str, str],
    patience: Patience = USUAL_PATIENCE,
) -> RemoteCollections:
    """A Search-R1-style server for each language.

    Args:
      urls: Language -> address.
      patience: How long each is waited for.
    """
    return RemoteCollections(SearchR1Servers(urls, patience))


@gin.configurable
def web_collections(
    engine: WebEngine,
    languages: Sequence[str],
    patience: Patience = USUAL_PATIENCE,
) -> RemoteCollections:
    """The web, as a search engine finds it, in the place of every language's collection.

    Args:
      engine: `@serp_api()` or `@google_custom_search()`.
      languages: In which results are wanted.
      patience: How long the engine is waited for.
    """
    return RemoteCollections(WebSearch(engine, languages, patience))


@gin.configurable
def serp_api(key_variable: str = "SERPAPI_API_KEY", engine: str = "google", url: str = SerpApi.url) -> SerpApi:
    """SerpAPI.

    Args:
      key_variable: Environment variable that holds the key.
      engine: Which search engine SerpAPI asks.
      url: Its address.

    Raises:
      UserError: there is no key.
    """
    return SerpApi(key=key_from(key_variable), engine=engine, url=url)


@gin.configurable
def google_custom_search(
    key_variable: str = "GOOGLE_API_KEY", engine_variable: str = "GOOGLE_CSE_ID", url: str = GoogleCustomSearch.url
) -> GoogleCustomSearch:
    """Google's Custom Search JSON API.

    Args:
      key_variable: Environment variable that holds the key.
      engine_variable: Environment variable that holds the search engine's id.
      url: Its address.

    Raises:
      UserError: there is no key, or no search engine.
    """
    return GoogleCustomSearch(key=key_from(key_variable), engine_id=key_from(engine_variable), url=url)
