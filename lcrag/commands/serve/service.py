"""The tool over HTTP: batches the questions of many callers and answers `POST /search_tool`.

A request is `{"question": TEXT, "language": CODE}`, where the language is optional; the answer is `Findings` as JSON. A
rejected request gets a 4xx or 5xx status with `{"detail": one sentence}`, never empty findings.
"""

import asyncio
import dataclasses
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any

import pydantic
from fastapi import HTTPException

from lcrag.commands.serve.search_tool import Findings, SearchTool, findings_json
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.limits import Count, Positive
from lcrag.retrieval import wire
from lcrag.retrieval.service import Batcher, JsonEndpoint, RequestLimits, refusing

PATH = "/search_tool"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolLimits(RequestLimits):
    """Limits of requests to the tool.

    Attributes:
      question_characters: Longest question; the policy's context may allow less.
      waiting_questions: Largest number of questions waiting for a run; further ones are refused with 503.
      answer_seconds: Time limit of an answer, including the wait.
    """

    body_bytes: Count = 1 << 16
    question_characters: Count = 4000
    waiting_questions: Count = 1024
    answer_seconds: Positive = 120.0


USUAL_TOOL_LIMITS = ToolLimits()


class ToolRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """A request to the tool, over HTTP or MCP."""

    question: str = pydantic.Field(description="The question, in one sentence that can be understood by itself.")
    language: wire.LanguageCode | None = pydantic.Field(
        default=None, description="ISO 639-1 code of the language that the question is written in."
    )


class ToolService:
    """Answers the questions of many callers; an asynchronous context manager.

    Args:
      tool: Called on one thread of the service, with at most as many questions as the sampler has slots.
      limits: Limits of a request.
      window_seconds: How long a question waits for others if the tool is idle.
    """

    def __init__(self, tool: SearchTool, *, limits: ToolLimits = USUAL_TOOL_LIMITS, window_seconds: float = 0.02):
        self.tool, self.limits = tool, limits
        self._batcher: Batcher[Question, Findings] = Batcher(
            self._answer_together,
            called="questions",
            window_seconds=window_seconds,
            batch_items=tool.runner.sampler.slots,
            waiting_items=limits.waiting_questions,
        )

    async def __aenter__(self) -> "ToolService":
        await self._batcher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self._batcher.__aexit__(kind, error, trail)

    @property
    def running(self) -> bool:
        """Whether questions are being answered."""
        return self._batcher.running

    @property
    def unanswered(self) -> int:
        """Number of questions that are waiting or being answered."""
        return self._batcher.unanswered

    async def answer(self, asked: ToolRequest) -> Findings:
        """Returns the findings of a question.

        Raises:
          HTTPException: The question is rejected; `detail` gives the reason in one sentence.
        """
        characters = len(asked.question)
        if characters > self.limits.question_characters:
            raise HTTPException(
                413, f"the question has {characters} characters: ask at most {self.limits.question_characters}"
            )
        try:
            question = await asyncio.to_thread(self.tool.question, asked.question, asked.language)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        async with refusing("the question could not be answered", self.limits.answer_seconds):
            [findings] = await self._batcher.ask([question])
        return findings

    def _answer_together(self, questions: Sequence[Question], kind: Hashable) -> Sequence[Findings]:
        return self.tool.answer(questions)


def tool_endpoint(service: ToolService) -> JsonEndpoint[ToolRequest]:
    """Returns `POST /search_tool`, which starts and ends the service with itself."""

    async def answer(asked: ToolRequest) -> dict[str, Any]:
        return findings_json(await service.answer(asked))

    return JsonEndpoint(PATH, ToolRequest, answer, service.limits, service, answer_model=Findings)
