"""JSON endpoints of the service's application: limits, complete requests, and errors.

A rejected request gets a 4xx or 5xx status with `{"detail": one sentence}`, never an empty answer.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pydantic
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lcrag.errors import UserError
from lcrag.limits import Count, check_fields
from lcrag.retrieval import wire
from lcrag.retrieval.remote.transport import ServiceUnavailable
from lcrag.retrieval.service.batching import Overloaded

RequestModel = TypeVar("RequestModel", bound=pydantic.BaseModel)
_RETRY = {"Retry-After": "1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits of an endpoint's requests; subclasses add their own, and every field is positive.

    Attributes:
      body_bytes: Longest body of a request.
    """

    body_bytes: Count = 1 << 22

    def __post_init__(self) -> None:
        check_fields(self)


@runtime_checkable
class Service(Protocol):
    """An asynchronous context manager that answers requests while entered, such as a `Batcher`."""

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""

    @property
    def unanswered(self) -> int:
        """Number of queries, questions or texts that are waiting or being answered."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *failure: Any) -> bool | None: ...


@runtime_checkable
class Extension(Service, Protocol):
    """Further routes of the application, which enters it at the start and exits it at the end."""

    @property
    def body_bytes(self) -> int:
        """Longest body that a route reads."""

    def add_to(self, application: FastAPI) -> None:
        """Adds the routes."""


class JsonEndpoint(Generic[RequestModel]):
    """`POST path` with JSON in and out, as an `Extension`.

    Args:
      path: Path of the route.
      request: Type of the requests.
      answer: Maps a request to the content of its answer; an `HTTPException` refuses it.
      limits: Limits of the body.
      service: Entered and exited with the endpoint.
      headers: Headers of every answer.
      answer_model: Type of the answers, for the API's schema.
    """

    def __init__(
        self,
        path: str,
        request: type[RequestModel],
        answer: Callable[[RequestModel], Awaitable[Any]],
        limits: RequestLimits,
        service: Service,
        headers: Mapping[str, str] | None = None,
        answer_model: Any = None,
    ):
        self._path, self._request, self._answer, self._limits = path, request, answer, limits
        self._service, self._headers, self._answer_model = service, headers, answer_model

    @property
    def running(self) -> bool:
        return self._service.running

    @property
    def unanswered(self) -> int:
        return self._service.unanswered

    @property
    def body_bytes(self) -> int:
        return self._limits.body_bytes

    async def __aenter__(self) -> "JsonEndpoint[RequestModel]":
        await self._service.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._service.__aexit__(*failure)

    def add_to(self, application: FastAPI) -> None:
        content = {"application/json": {"schema": self._request.model_json_schema()}}
        schema = {"requestBody": {"required": True, "content": content}}
        application.add_api_route(
            self._path, self._post, methods=["POST"], openapi_extra=schema, response_model=self._answer_model
        )

    async def _post(self, request: Request) -> JSONResponse:
        body = await request.body()
        if len(body) > self.body_bytes:
            raise HTTPException(413, _too_long(self.body_bytes))
        try:
            asked = self._request.model_validate_json(body)
        except pydantic.ValidationError as error:
            raise HTTPException(422, wire.first_problem(error)) from error
        return JSONResponse(await self._answer(asked), headers=self._headers)


class WholeRequests:
    """ASGI middleware that reads complete requests, and cancels them when their clients disconnect.

    A body longer than `body_bytes` is read to its end and discarded before the answer 413, because most clients read an
    answer only after they have sent their request.
    """

    def __init__(self, app: ASGIApp, body_bytes: int):
        self._app, self._most_bytes = app, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body, length, more = bytearray(), 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            part, more = message.get("body", b""), message.get("more_body", False)
            length += len(part)
            if length <= self._most_bytes:
                body += part
        if length > self._most_bytes:
            return await JSONResponse({"detail": _too_long(self._most_bytes)}, 413)(scope, receive, send)
        await self._answer(bytes(body), scope, receive, send)

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application until it has answered or the client has disconnected."""
        requests, answered = [{"type": "http.request", "body": body, "more_body": False}], False

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


def _too_long(most_bytes: int) -> str:
    return f"the body is longer than {most_bytes} bytes: ask in several"


@contextlib.asynccontextmanager
async def refusing(failure: str, seconds: float) -> AsyncIterator[None]:
    """Converts errors to HTTP errors: 504 after `seconds`, 503 if too many wait or no host answers, otherwise 500.

    Args:
      failure: Beginning of the message of a failure, "the search failed" for example.
      seconds: Time limit, waiting included.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except HTTPException:
        raise
    except TimeoutError as error:
        raise HTTPException(504, f"no answer within {seconds} seconds") from error
    except Overloaded as error:
        raise HTTPException(503, f"{error}: come back later", headers=_RETRY) from error
    except ServiceUnavailable as error:
        raise HTTPException(503, f"{failure}: {wire.one_line(error)}", headers=_RETRY) from error
    except Exception as error:  # the batcher has logged it
        reason = wire.one_line(error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        raise HTTPException(500, f"{failure}: {reason}") from error
