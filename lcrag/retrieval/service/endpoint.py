"""JSON endpoints of the service's application: limits, request bodies, and refusals.

A refusal is a 4xx or 5xx status with `{"detail": one sentence}`, never an empty answer.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pydantic
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from lcrag.errors import UserError
from lcrag.retrieval import wire
from lcrag.retrieval.service.batching import Overloaded

RequestModel = TypeVar("RequestModel", bound=pydantic.BaseModel)
_RETRY = {"Retry-After": "1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits of an endpoint's requests; subclasses add their own, and every field is positive.

    Attributes:
      body_bytes: Longest body of a request.
      body_seconds: Time for a request to arrive.
    """

    body_bytes: int = 1 << 22
    body_seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) <= 0:
                raise UserError(f"{type(self).__name__}.{field.name} is {value}: nothing would be accepted")


@runtime_checkable
class Service(Protocol):
    """An asynchronous context manager that answers requests while entered, such as a `Batcher`."""

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *failure: Any) -> bool | None: ...


@runtime_checkable
class Extension(Service, Protocol):
    """Further routes of the application, which enters it at the start and exits it at the end."""

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
        body = await read_body(request, self._limits.body_bytes, self._limits.body_seconds)
        try:
            asked = self._request.model_validate_json(body)
        except pydantic.ValidationError as error:
            raise HTTPException(422, wire.first_problem(error)) from error
        return JSONResponse(await self._answer(asked), headers=self._headers)


async def read_body(request: Request, most_bytes: int, seconds: float) -> bytes:
    """Returns the body of a request; one that is too long (413), late (408) or cut off (400) is an HTTPException."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise HTTPException(413, f"the body is longer than {most_bytes} bytes: ask in several")
    except TimeoutError as error:
        raise HTTPException(408, f"the request did not arrive within {seconds} seconds") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client disconnected") from error
    return bytes(body)


@contextlib.asynccontextmanager
async def refusing(failure: str, seconds: float) -> AsyncIterator[None]:
    """Turns errors of the block into refusals: 504 after `seconds`, 503 when too many wait, otherwise 500.

    Args:
      failure: Begins the sentence of a failure, "the search failed" for example.
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
    except Exception as error:  # the batcher has logged it
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise HTTPException(500, f"{failure}: {reason}") from error
