"""The FastAPI application of the service: `POST /retrieve`, `GET /collections`, `GET /healthz`."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any, TypeAlias

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse

from lcrag.errors import UserError
from lcrag.limits import Count, Positive
from lcrag.retrieval import wire
from lcrag.retrieval.passages import Hit, SearchableCollections
from lcrag.retrieval.service.batching import Batcher
from lcrag.retrieval.service.endpoint import Extension, JsonEndpoint, RequestLimits, WholeRequests, refusing

Pair: TypeAlias = tuple[str, str]  # query, language
SearchBatcher: TypeAlias = Batcher[Pair, Sequence[Hit]]
# The number of passages for a request that names none, as in Search-R1's server.
PASSAGES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceLimits(RequestLimits):
    """Limits of searches.

    Attributes:
      queries: Largest number of queries in a request.
      query_characters: Longest query.
      passages: Largest number of passages per query.
      answer_passages: Largest number of passages of all queries of a request.
      waiting_queries: Largest number of unanswered queries, over all requests; further ones are refused with 503.
      search_seconds: Time limit of an answer, including the wait.
    """

    queries: Count = 2048
    query_characters: Count = 1 << 13
    passages: Count = 100
    answer_passages: Count = 1 << 15
    waiting_queries: Count = 1 << 14
    search_seconds: Positive = 60.0


USUAL_LIMITS = ServiceLimits()


def make_application(
    collections: SearchableCollections,
    *,
    limits: ServiceLimits = USUAL_LIMITS,
    default_language: str | None = None,
    window_seconds: float = 0.003,
    batch_queries: int = 512,
    extensions: Sequence[Extension] = (),
) -> FastAPI:
    """Builds the service of some collections.

    Args:
      collections: The collections to search.
      limits: Limits of a request.
      default_language: Searched for a request without languages; None: English if it has a collection, or the only
        language.
      window_seconds: How long a request waits for others to share its search.
      batch_queries: A batch takes no further request once it holds this many queries.
      extensions: Further routes; the service is healthy if they are.

    Raises:
      UserError: The default language has no collection.
    """
    languages = list(collections.languages)
    description = wire.Description(
        languages=languages,
        default_language=default_among(languages, default_language),
        hashes=collections.content_hashes(),
        most_queries=limits.queries,
        most_query_characters=limits.query_characters,
        most_passages=limits.passages,
    )
    batcher = search_batcher(
        collections, window_seconds=window_seconds, batch_items=batch_queries, waiting_items=limits.waiting_queries
    )
    endpoints = [_retrieve_endpoint(batcher, description, limits), *extensions]

    @contextlib.asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for endpoint in endpoints:
                await stack.enter_async_context(endpoint)
            yield

    application = FastAPI(title="lcrag", lifespan=living, docs_url=None, redoc_url=None)
    application.add_middleware(WholeRequests, body_bytes=max(endpoint.body_bytes for endpoint in endpoints))

    @application.get("/collections")
    async def describe_collections() -> wire.Description:
        return description

    @application.get("/healthz")
    async def healthz() -> JSONResponse:
        return _health(endpoints, description)

    for endpoint in endpoints:
        endpoint.add_to(application)
    return application


def _retrieve_endpoint(
    batcher: SearchBatcher, description: wire.Description, limits: ServiceLimits
) -> JsonEndpoint[wire.RetrieveRequest]:
    async def retrieve(asked: wire.RetrieveRequest) -> dict[str, Any]:
        passages = min(PASSAGES, limits.passages) if asked.topk is None else asked.topk
        _check_limits(asked.queries, passages, limits)
        languages = _languages(asked, description)
        if not asked.queries:
            return wire.answer_of([], asked.return_scores)
        async with refusing("the search failed", limits.search_seconds):
            hits = await batcher.ask(list(zip(asked.queries, languages, strict=True)), passages)
        return wire.answer_of(hits, asked.return_scores)

    content = {wire.CONTENT_HEADER: wire.digest(description.hashes)}
    return JsonEndpoint("/retrieve", wire.RetrieveRequest, retrieve, limits, batcher, headers=content)


def _health(endpoints: Sequence[Extension], description: wire.Description) -> JSONResponse:
    """Returns what the service can answer; 503 if an endpoint has stopped."""
    running = all(endpoint.running for endpoint in endpoints)
    health: dict[str, Any] = {
        "status": "ok" if running else "stopped",
        "languages": description.languages,
        "unanswered": sum(endpoint.unanswered for endpoint in endpoints),
    }
    if description.hashes:
        health |= {"content": wire.digest(description.hashes)}
    return JSONResponse(health, 200 if running else 503)


def search_batcher(
    collections: SearchableCollections, *, window_seconds: float, batch_items: int, waiting_items: int
) -> SearchBatcher:
    """Returns a batcher whose items are (query, language) pairs, their kind the number of passages."""

    def search(pairs: Sequence[Pair], passages: Hashable) -> Sequence[Sequence[Hit]]:
        assert isinstance(passages, int)
        return collections.search([query for query, _ in pairs], [language for _, language in pairs], passages)

    return Batcher(
        search, called="queries", window_seconds=window_seconds, batch_items=batch_items, waiting_items=waiting_items
    )


def default_among(languages: Sequence[str], wanted: str | None) -> str | None:
    """Returns the language of a request that names none: `wanted`, else English if present, else the only language.

    Raises:
      UserError: The wanted language has no collection.
    """
    if wanted is None:
        return "en" if "en" in languages else languages[0] if len(languages) == 1 else None
    if wanted not in languages:
        raise UserError(
            f"there is no collection in the default language {wanted!r}: choose one of {', '.join(languages)}"
        )
    return wanted


def _check_limits(queries: Sequence[str], passages: int, limits: ServiceLimits) -> None:
    if len(queries) > limits.queries:
        raise HTTPException(413, f"{len(queries)} queries in one request: ask at most {limits.queries}")
    if (longest := max(map(len, queries), default=0)) > limits.query_characters:
        raise HTTPException(413, f"a query has {longest} characters: ask at most {limits.query_characters}")
    if not 1 <= passages <= limits.passages:
        raise HTTPException(422, f"topk is out of range: ask for 1 to {limits.passages} passages")
    if (found := passages * len(queries)) > limits.answer_passages:
        raise HTTPException(413, f"{found} passages in one answer: ask for at most {limits.answer_passages}")


def _languages(asked: wire.RetrieveRequest, description: wire.Description) -> list[str]:
    """Returns the language of each query."""
    present = ", ".join(description.languages) or "none"
    if asked.languages is None:
        if description.default_language is None:
            raise HTTPException(422, f"the request names no languages and there is no default: there are {present}")
        return [description.default_language] * len(asked.queries)
    if len(asked.languages) != len(asked.queries):
        raise HTTPException(
            422, f"{len(asked.languages)} languages for {len(asked.queries)} queries: give one a query, or none"
        )
    missing = sorted(set(asked.languages) - set(description.languages))
    if missing:
        raise HTTPException(422, f"no collection in language {missing[0]!r}: there are {present}")
    return asked.languages
