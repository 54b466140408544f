"""The FastAPI application: `POST /retrieve`, `GET /collections`, `GET /healthz`.

A refusal is a 4xx or 5xx status with `{"detail": one sentence}`, never an empty result.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import TypeAlias

import pydantic
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from lcrag.errors import UserError
from lcrag.retrieval import wire
from lcrag.retrieval.passages import Hit, SearchableCollections
from lcrag.retrieval.service.batching import Batcher, Overloaded
from lcrag.retrieval.service.body import read_body
from lcrag.retrieval.service.extension import Extension
from lcrag.retrieval.service.limits import USUAL_LIMITS, ServiceLimits

Pair: TypeAlias = tuple[str, str]  # query, language
SearchBatcher: TypeAlias = Batcher[Pair, Sequence[Hit]]
# The number of passages for a request that does not say, as in Search-R1's server.
PASSAGES = 3
_RETRY_SECONDS = "1"
_REQUEST_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": wire.RetrieveRequest.model_json_schema()}},
    }
}


def make_application(
    collections: SearchableCollections,
    *,
    limits: ServiceLimits = USUAL_LIMITS,
    default_language: str | None = None,
    window_seconds: float = 0.003,
    batch_queries: int = 512,
    extensions: Sequence[Extension] = (),
) -> FastAPI:
    """The service of some collections.

    Args:
      collections: What is searched.
      limits: What a request may ask for.
      default_language: Searched for a request without languages; None: English if there is such a collection, or the
        only one there is.
      window_seconds: How long a request waits for others to share its search.
      batch_queries: A batch takes no further request once it holds this many queries.
      extensions: What it answers beside searches; it is healthy if they are.

    Raises:
      UserError: the default language has no collection.
    """
    description = describe(collections, limits, default_language)
    content = {wire.CONTENT_HEADER: wire.digest(description.hashes)}
    batcher = search_batcher(
        collections,
        window_seconds=window_seconds,
        batch_items=batch_queries,
        waiting_items=limits.waiting_queries,
    )

    @contextlib.asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(batcher)
            for extension in extensions:
                await stack.enter_async_context(extension)
            yield

    application = FastAPI(title="lcrag", lifespan=living, docs_url=None, redoc_url=None)

    @application.post("/retrieve", openapi_extra=_REQUEST_SCHEMA)
    async def retrieve(request: Request) -> JSONResponse:
        asked = _checked(await read_body(request, limits.body_bytes, limits.body_seconds), limits)
        languages = _languages(asked, description)
        hits = await _search(batcher, asked, languages, limits)
        return JSONResponse(wire.answer_of(hits, asked.return_scores), headers=content)

    @application.get("/collections")
    async def describe_collections() -> wire.Description:
        return description

    @application.get("/healthz")
    async def healthz() -> JSONResponse:
        running = batcher.running and all(extension.running for extension in extensions)
        status = "ok" if running else "stopped"
        return JSONResponse({"status": status, "languages": description.languages}, 200 if running else 503)

    for extension in extensions:
        extension.add_to(application)
    return application


def search_batcher(
    collections: SearchableCollections, *, window_seconds: float, batch_items: int, waiting_items: int
) -> SearchBatcher:
    """A batcher whose items are (query, language) pairs, and their kind the number of passages."""

    def search(pairs: Sequence[Pair], passages: Hashable) -> Sequence[Sequence[Hit]]:
        assert isinstance(passages, int)
        return collections.search([query for query, _ in pairs], [language for _, language in pairs], passages)

    return Batcher(
        search,
        called="queries",
        window_seconds=window_seconds,
        batch_items=batch_items,
        waiting_items=waiting_items,
    )


def describe(
    collections: SearchableCollections, limits: ServiceLimits, default_language: str | None
) -> wire.Description:
    """What a client may know of a service before it searches.

    Raises:
      UserError: the default language has no collection.
    """
    languages = list(collections.languages)
    return wire.Description(
        languages=languages,
        default_language=default_among(languages, default_language),
        hashes=collections.content_hashes(),
        most_queries=limits.queries,
        most_passages=limits.passages,
    )


def default_among(languages: Sequence[str], wanted: str | None) -> str | None:
    """The language of a request that names none: the wanted one; without one, English, or the only one there is.

    Raises:
      UserError: the wanted language has no collection.
    """
    if wanted is None:
        return "en" if "en" in languages else languages[0] if len(languages) == 1 else None
    if wanted not in languages:
        raise UserError(
            f"there is no collection in the default language {wanted!r}: choose one of {', '.join(languages)}"
        )
    return wanted


def _checked(body: bytes, limits: ServiceLimits) -> wire.RetrieveRequest:
    try:
        asked = wire.RetrieveRequest.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise HTTPException(422, wire.first_problem(error)) from error
    if len(asked.queries) > limits.queries:
        raise HTTPException(413, f"{len(asked.queries)} queries in one request: ask at most {limits.queries}")
    if asked.topk is not None and not 1 <= asked.topk <= limits.passages:
        raise HTTPException(422, f"topk is {asked.topk}: ask for 1 to {limits.passages} passages")
    return asked


def _languages(asked: wire.RetrieveRequest, description: wire.Description) -> list[str]:
    """The language of each query."""
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


async def _search(
    batcher: SearchBatcher, asked: wire.RetrieveRequest, languages: list[str], limits: ServiceLimits
) -> Sequence[Sequence[Hit]]:
    if not asked.queries:
        return []
    passages = asked.topk or min(PASSAGES, limits.passages)
    try:
        async with asyncio.timeout(limits.search_seconds):
            return await batcher.ask(list(zip(asked.queries, languages, strict=True)), passages)
    except TimeoutError as error:
        raise HTTPException(504, f"no answer within {limits.search_seconds} seconds") from error
    except Overloaded as error:
        raise HTTPException(503, f"{error}: come back later", headers={"Retry-After": _RETRY_SECONDS}) from error
    except Exception as error:  # the batcher has logged it
        raise HTTPException(500, f"the search failed: {type(error).__name__}: {error}") from error
