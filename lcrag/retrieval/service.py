"""The HTTP service: the `/retrieve` API that Search-R1's clients speak, for many languages in one process.

`make_application` returns a FastAPI application with `POST /retrieve`, `GET /collections` and `GET /healthz`, to which
`add_json_route` adds others; `run_until_stopped` serves it with uvicorn. A `Batcher` answers the requests of a few
milliseconds with one call. A rejected request gets a 4xx or 5xx status with `{"detail": one sentence}`, never an empty
answer.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import gin
import pydantic
import uvicorn
from absl import logging
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from lcrag.errors import Count, Positive, UserError, excerpt, first_problem, typed
from lcrag.retries import ServiceUnavailable
from lcrag.retrieval.passages import SearchableCollections
from lcrag.retrieval.remote import (
    CONTENT_HEADER,
    Description,
    RetrieveRequest,
    answer_of,
    digest,
    is_loopback,
)

RequestModel = TypeVar("RequestModel", bound=pydantic.BaseModel)
# The number of passages for a request that names none, as in Search-R1's server.
PASSAGES = 3
# Further connections get 503; this also bounds the bodies in memory.
CONNECTIONS = 512
_RETRY = {"Retry-After": "1"}


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of requests.

    Bytes and seconds limit what a request may cost; Search-R1's training asks 512 x 5 queries at once.
    """

    body_bytes: Count = 1 << 24  # of any request
    arrival_seconds: Positive = 10.0  # for a body to arrive
    queries: Count = 1 << 15  # of a request
    query_characters: Count = 1 << 13
    passages: Count = 100  # of a query
    answer_passages: Count = 1 << 17  # of all queries of a request
    waiting_queries: Count = 1 << 15  # unanswered, over all requests; further ones are refused with 503
    search_seconds: Positive = 300.0  # for an answer, including the wait


USUAL_LIMITS = ServiceLimits()


class Batcher:
    """Answers many small requests with few large calls, one at a time.

    Requests that arrive during a call, or within `window_seconds` of the first one, form the next batch. Requests of
    different kinds are answered separately, so an answer does not depend on its batch. A request of more than
    `batch_items` is answered in several calls, and one is refused if more than `waiting_items` would be unanswered.

    Args:
      serve: (items, their kind) -> an answer per item, in order; called on one thread.
      called: Name of the items in messages.

    Attributes:
      unanswered: Number of items in the queue and in the running call.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[Any], Any], Sequence[Any]],
        *,
        called: str,
        window_seconds: float,
        batch_items: int,
        waiting_items: int,
    ):
        self._serve, self._called, self._window, self._batch = serve, called, window_seconds, batch_items
        self._max_waiting, self.unanswered = waiting_items, 0
        self._queue: collections.deque[_Part] = collections.deque()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=called)
        self._task: asyncio.Task[None] | None = None

    async def ask(self, items: Sequence[Any], kind: Hashable = None) -> list[Any]:
        """Returns the answer to each item; a cancelled request leaves the queue.

        Raises:
          HTTPException: Too many items are waiting; a request is always accepted if no items are waiting.
          Exception: The error of the call for this request alone.
        """
        if self.unanswered and self.unanswered + len(items) > self._max_waiting:
            refusal = f"{self.unanswered} {self._called} are waiting: come back later"
            raise HTTPException(503, refusal, headers=_RETRY)
        answers: list[Any] = []
        self.unanswered += len(items)
        try:
            for start in range(0, len(items), self._batch):
                future = asyncio.get_running_loop().create_future()
                part = _Part(items[start : start + self._batch], kind, future)
                self._queue.append(part)
                if self._task is None or self._task.done():
                    self._task = asyncio.create_task(self._run(), name=f"batches of {self._called}")
                try:
                    answers += await future
                except asyncio.CancelledError:
                    with contextlib.suppress(ValueError):  # a call has taken it
                        self._queue.remove(part)
                    raise
        finally:
            self.unanswered -= len(items)
        return answers

    async def _run(self) -> None:
        """Answers batch after batch until the queue is empty."""
        while self._queue:
            await asyncio.sleep(self._window)
            by_kind: dict[Hashable, list[_Part]] = {}
            size = 0
            while self._queue and (size := size + len(self._queue[0].items)) <= self._batch:
                part = self._queue.popleft()
                by_kind.setdefault(part.kind, []).append(part)
            calls = list(by_kind.values())
            while calls:
                parts = [part for part in calls.pop(0) if not part.answers.done()]  # the others were cancelled
                if not parts:
                    continue
                items = [item for part in parts for item in part.items]
                try:
                    loop = asyncio.get_running_loop()
                    answers = await loop.run_in_executor(self._executor, self._serve, items, parts[0].kind)
                    if len(answers) != len(items):
                        raise RuntimeError(f"{len(answers)} of {len(items)} {self._called} were answered")
                except Exception as error:
                    if len(parts) > 1:  # one call for each, so only the faulty request fails
                        calls[:0] = [[part] for part in parts]
                        continue
                    logging.exception("a request of %d %s failed", len(items), self._called)
                    if not parts[0].answers.done():
                        parts[0].answers.set_exception(error)
                    continue
                remaining = iter(answers)
                for part in parts:
                    of_part = list(itertools.islice(remaining, len(part.items)))
                    if not part.answers.done():
                        part.answers.set_result(of_part)


class _Part(NamedTuple):
    items: Sequence[Any]
    kind: Hashable
    answers: asyncio.Future[list[Any]]


def make_application(
    collections: SearchableCollections,
    *,
    limits: ServiceLimits = USUAL_LIMITS,
    default_language: str | None = None,
    window_seconds: float = 0.005,
    batch_queries: int = 512,
) -> FastAPI:
    """Returns the service of some collections.

    A request without languages searches the default one (see `default_among`). A request waits `window_seconds` for
    others to share its search, of at most `batch_queries`.
    """
    languages = list(collections.languages)
    description = Description(
        languages=languages,
        default_language=default_among(languages, default_language),
        hashes=collections.content_hashes(),
        most_queries=limits.queries,
        most_query_characters=limits.query_characters,
        most_passages=limits.passages,
    )
    content = digest(description.hashes)
    batcher = Batcher(
        lambda pairs, passages: collections.search(
            [query for query, _ in pairs], [code for _, code in pairs], passages
        ),
        called="queries",
        window_seconds=window_seconds,
        batch_items=batch_queries,
        waiting_items=limits.waiting_queries,
    )
    application = FastAPI(title="lcrag", docs_url=None, redoc_url=None)
    application.add_middleware(WholeRequests, body_bytes=limits.body_bytes, arrival_seconds=limits.arrival_seconds)
    application.state.batchers = [batcher]

    async def retrieve(asked: RetrieveRequest) -> dict[str, Any]:
        queries = asked.queries
        passages = min(PASSAGES, limits.passages) if asked.topk is None else asked.topk
        if len(queries) > limits.queries:
            raise HTTPException(413, f"{len(queries)} queries in one request: ask at most {limits.queries}")
        if (longest := max(map(len, queries), default=0)) > limits.query_characters:
            raise HTTPException(413, f"a query has {longest} characters: ask at most {limits.query_characters}")
        if not 1 <= passages <= limits.passages:
            raise HTTPException(422, f"topk is out of range: ask for 1 to {limits.passages} passages")
        if (total := passages * len(queries)) > limits.answer_passages:
            raise HTTPException(413, f"{total} passages in one answer: ask for at most {limits.answer_passages}")
        present = ", ".join(languages) or "none"
        if asked.languages is None:
            if description.default_language is None:
                raise HTTPException(422, f"the request names no languages and there is no default: there are {present}")
            wanted = [description.default_language] * len(queries)
        else:
            wanted = asked.languages
        if len(wanted) != len(queries):
            raise HTTPException(422, f"{len(wanted)} languages for {len(queries)} queries: give one a query, or none")
        if missing := sorted(set(wanted) - set(languages)):
            raise HTTPException(422, f"no collection in language {missing[0]!r}: there are {present}")
        async with refusing("the search failed", limits.search_seconds):
            hits = await batcher.ask(list(zip(queries, wanted, strict=True)), passages)
        return answer_of(hits, asked.return_scores)

    add_json_route(application, "/retrieve", RetrieveRequest, retrieve, headers={CONTENT_HEADER: content})

    @application.get("/collections")
    async def describe_collections() -> Description:
        return description

    @application.get("/healthz")
    async def healthz() -> dict[str, Any]:
        unanswered = sum(batcher.unanswered for batcher in application.state.batchers)
        health = {"status": "ok", "languages": languages, "unanswered": unanswered}
        return health | ({"content": content} if description.hashes else {})

    return application


def default_among(languages: Sequence[str], wanted: str | None) -> str | None:
    """Returns the language of a request that names none: `wanted`, else English if present, else the only language."""
    if wanted is None:
        return "en" if "en" in languages else languages[0] if len(languages) == 1 else None
    if wanted not in languages:
        raise UserError(
            f"there is no collection in the default language {wanted!r}: choose one of {', '.join(languages)}"
        )
    return wanted


def add_json_route(
    application: FastAPI,
    path: str,
    request: type[RequestModel],
    answer: Callable[[RequestModel], Awaitable[Any]],
    *,
    headers: Mapping[str, str] | None = None,
    answer_model: Any = None,
) -> None:
    """Adds `POST path` with JSON in and out, of any content type, since `curl -d` sends none of JSON's.

    `answer` maps a request to the content of its answer, whose type in the API's schema is `answer_model`.
    """

    async def post(http: Request) -> JSONResponse:
        try:
            asked = request.model_validate_json(await http.body())
        except pydantic.ValidationError as error:
            raise HTTPException(422, first_problem(error)) from error
        return JSONResponse(await answer(asked), headers=headers)

    content = {"application/json": {"schema": request.model_json_schema()}}
    schema = {"requestBody": {"required": True, "content": content}}
    application.add_api_route(path, post, methods=["POST"], openapi_extra=schema, response_model=answer_model)


@contextlib.asynccontextmanager
async def refusing(failure: str, seconds: float) -> AsyncIterator[None]:
    """Converts errors to HTTP errors: 504 after `seconds`, 503 if too many wait or no host answers, otherwise 500.

    The message of a failure begins with `failure`, "the search failed" for example.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except HTTPException:
        raise
    except TimeoutError as error:
        raise HTTPException(504, f"no answer within {seconds} seconds") from error
    except ServiceUnavailable as error:
        raise HTTPException(503, f"{failure}: {excerpt(error)}", headers=_RETRY) from error
    except Exception as error:  # the batcher has logged it
        reason = excerpt(error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        raise HTTPException(500, f"{failure}: {reason}") from error


class OwnRequests:
    """ASGI middleware of a server on a loopback address: refuses requests that name another host, or a foreign origin.

    Otherwise a web page could ask it by DNS rebinding, where the page's own name is an address of this machine.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = Headers(scope=scope) if scope["type"] == "http" else {}
        for header, status in (("host", 421), ("origin", 403)):
            host = re.sub(r"^\w+://|:\d*$", "", named.get(header, "localhost")).strip("[]")
            if not is_loopback(host):
                mistake = f"the request's {header} is {excerpt(host)!r}, but this server is for its own machine only"
                refusal = JSONResponse({"detail": f"{mistake}: name {scope['server'][0]} or localhost"}, status)
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)


class WholeRequests:
    """ASGI middleware that reads complete requests, and cancels them when their clients disconnect.

    A body longer than `body_bytes` is read to its end and discarded before the answer 413, because most clients read an
    answer only after they have sent their request. A body that takes longer than `arrival_seconds` gets 408.
    """

    def __init__(self, app: ASGIApp, body_bytes: int, arrival_seconds: float):
        self._app, self._max_bytes, self._arrival_seconds = app, body_bytes, arrival_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body, length = bytearray(), 0
        try:
            async with asyncio.timeout(self._arrival_seconds):
                async for part in Request(scope, receive).stream():
                    length += len(part)
                    if length <= self._max_bytes:
                        body += part
        except ClientDisconnect:
            return
        except TimeoutError:
            detail = f"the request did not arrive within {self._arrival_seconds:g} seconds"
            response = JSONResponse({"detail": detail}, 408, headers={"connection": "close"})
            return await response(scope, receive, send)
        if length > self._max_bytes:
            detail = f"the body is longer than {self._max_bytes} bytes: ask in several"
            return await JSONResponse({"detail": detail}, 413)(scope, receive, send)

        requests, answered = [{"type": "http.request", "body": bytes(body), "more_body": False}], False

        async def request() -> MutableMapping[str, Any]:
            return requests.pop() if requests else await asyncio.Future()

        async def respond(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        working = asyncio.ensure_future(self._app(scope, request, respond))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answered:
                working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
        finally:
            working.cancel()
            leaving.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 takes any free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error}): choose another with --gin.serve.host and --gin.serve.port"
        ) from error


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(application: FastAPI, listener: socket.socket, graceful_seconds: float) -> uvicorn.Server:
    """Returns a server that, when stopped, finishes the requests in flight within `graceful_seconds`."""
    if is_loopback(listener.getsockname()[0]):
        application.add_middleware(OwnRequests)
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http="h11",
            loop="asyncio",  # uvloop need not be installed
            limit_concurrency=CONNECTIONS,
            log_config=None,
            access_log=False,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=round(graceful_seconds) + 1,
        )
    )


def run_until_stopped(application: FastAPI, listener: socket.socket, graceful_seconds: float) -> None:
    """Serves until SIGTERM or SIGINT, finishes the requests in flight, closes the listener and returns."""
    server = make_server(application, listener, graceful_seconds)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn handles signals itself once it has started, and at its end raises again those that it has got.
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
