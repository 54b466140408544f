"""`POST /search_tool` beside `/retrieve`: one question a request, many requests a run of the engine.

A request is `{"question": TEXT, "language": CODE}`, the language optional; an answer is `Findings` as JSON. A refusal
is a 4xx or 5xx status with `{"detail": one sentence}`, never empty findings.
"""

from typing import Any

import pydantic
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from lcrag.app.commands.serve.findings import Findings, findings_json
from lcrag.app.commands.serve.service import Refusal, ToolService
from lcrag.retrieval import wire
from lcrag.retrieval.service import read_body

PATH = "/search_tool"
_RETRY = {503: {"Retry-After": "1"}}


class ToolRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """What the tool is asked, over HTTP and by agents alike."""

    question: str = pydantic.Field(description="The question, in one sentence that can be understood by itself.")
    language: str | None = pydantic.Field(
        default=None, description="ISO 639-1 code of the language that the question is written in."
    )


_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": ToolRequest.model_json_schema()}}}
}


def _checked(body: bytes) -> ToolRequest:
    try:
        return ToolRequest.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise HTTPException(422, wire.first_problem(error)) from error


class ToolEndpoint:
    """The endpoint as an extension of the retrieval service's application; it lives as long as its service.

    Args:
      service: What answers.
    """

    def __init__(self, service: ToolService):
        self._service = service

    @property
    def running(self) -> bool:
        """Whether questions are being answered."""
        return self._service.running

    async def __aenter__(self) -> "ToolEndpoint":
        await self._service.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._service.__aexit__(*failure)

    def add_to(self, application: FastAPI) -> None:
        """Adds `POST /search_tool`."""
        application.add_api_route(PATH, self._answer, methods=["POST"], openapi_extra=_BODY, response_model=Findings)

    async def _answer(self, request: Request) -> JSONResponse:
        limits = self._service.limits
        asked = _checked(await read_body(request, limits.body_bytes, limits.body_seconds))
        try:
            findings = await self._service.answer(asked.question, asked.language)
        except Refusal as refusal:
            raise HTTPException(refusal.status, str(refusal), _RETRY.get(refusal.status)) from refusal
        return JSONResponse(findings_json(findings))
