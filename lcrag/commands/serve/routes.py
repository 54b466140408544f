"""`POST /search_tool` and `POST /translate` of the service: they batch the questions and texts of many callers.

A question is `{"question": TEXT, "language": CODE}`, where the language is optional; the answer is `Findings` as JSON.
For translations see `lcrag.models.translators`; a text that cannot be translated gets a failure.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import gin
import pydantic
from fastapi import FastAPI, HTTPException

from lcrag.commands.serve.search_tool import Findings, SearchTool
from lcrag.episodes import Translated, TranslationFailure, Translator
from lcrag.errors import UserError, typed
from lcrag.models.translators import PATH, TranslateAnswer, Translation
from lcrag.retrieval.service import Batcher, add_json_route, check_positive, refusing
from lcrag.retrieval.wire import LanguageCode


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """Limits of requests to the tool; the policy's context may allow shorter questions only.

    Questions over `waiting_questions` are refused with 503; `answer_seconds` include the wait.
    """

    question_characters: int = 4000
    waiting_questions: int = 1024
    answer_seconds: float = 120.0

    def __post_init__(self) -> None:
        check_positive(self)


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationLimits:
    """Limits of requests to a served translator: `texts` of one request, `waiting_texts` of all requests."""

    texts: int = 1024
    text_characters: int = 20_000
    waiting_texts: int = 1 << 14
    answer_seconds: float = 300.0

    def __post_init__(self) -> None:
        check_positive(self)


class ToolRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """A request to the tool, over HTTP or MCP."""

    question: str = pydantic.Field(description="The question, in one sentence that can be understood by itself.")
    language: LanguageCode | None = pydantic.Field(
        default=None, description="ISO 639-1 code of the language that the question is written in."
    )


class TranslateRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """A request of `POST /translate`."""

    texts: list[str] = pydantic.Field(description="The texts to translate.")
    source: LanguageCode | None = pydantic.Field(
        default=None, description="Code of their language; null: it is detected."
    )
    target: LanguageCode = pydantic.Field(description="Code of the language to translate into.")


USUAL_TOOL_LIMITS, USUAL_TRANSLATION_LIMITS = ToolLimits(), TranslationLimits()


class ToolService:
    """Answers the questions of many callers.

    Args:
      tool: Called on one thread of the service, with at most as many questions as the sampler has slots.
      limits: Limits of a request.
      window_seconds: How long a question waits for others.
    """

    def __init__(self, tool: SearchTool, *, limits: ToolLimits = USUAL_TOOL_LIMITS, window_seconds: float = 0.02):
        self.tool, self._limits = tool, limits
        self.batcher = Batcher(
            lambda questions, _: tool.answer(questions),
            called="questions",
            window_seconds=window_seconds,
            batch_items=tool.runner.sampler.slots,
            waiting_items=limits.waiting_questions,
        )

    async def answer(self, asked: ToolRequest) -> Findings:
        """Returns the findings of a question; an HTTPException says in one sentence why it is rejected."""
        characters, allowed = len(asked.question), self._limits.question_characters
        if characters > allowed:
            raise HTTPException(413, f"the question has {characters} characters: ask at most {allowed}")
        try:
            question = await asyncio.to_thread(self.tool.question, asked.question, asked.language)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        async with refusing("the question could not be answered", self._limits.answer_seconds):
            [findings] = await self.batcher.ask([question])
        return findings


def add_tool_route(application: FastAPI, service: ToolService) -> None:
    """Adds `POST /search_tool`."""

    async def answer(asked: ToolRequest) -> dict[str, Any]:
        return dataclasses.asdict(await service.answer(asked))

    application.state.batchers.append(service.batcher)
    add_json_route(application, "/search_tool", ToolRequest, answer, answer_model=Findings)


def add_translate_route(
    application: FastAPI,
    translator: Translator,
    *,
    limits: TranslationLimits = USUAL_TRANSLATION_LIMITS,
    window_seconds: float = 0.005,
    batch_texts: int = 256,
) -> None:
    """Adds `POST /translate`; the translator is called on one thread, for all waiting texts of a direction."""
    batcher = Batcher(
        lambda texts, direction: translator(texts, *direction),
        called="texts",
        window_seconds=window_seconds,
        batch_items=batch_texts,
        waiting_items=limits.waiting_texts,
    )

    async def answer(asked: TranslateRequest) -> dict[str, Any]:
        if len(asked.texts) > limits.texts:
            raise HTTPException(413, f"{len(asked.texts)} texts in one request: ask at most {limits.texts}")
        if (longest := max(map(len, asked.texts), default=0)) > limits.text_characters:
            raise HTTPException(413, f"a text has {longest} characters: ask at most {limits.text_characters}")
        translated: Sequence[Translated] = ()
        async with refusing("the translation failed", limits.answer_seconds):
            try:
                translated = await batcher.ask(asked.texts, (asked.source, asked.target))
            except UserError as error:  # the translator itself is unreachable, and a retry does not help
                raise HTTPException(503, str(error)) from error
        translations = [
            Translation(failure=text.reason, unavailable=text.unavailable or None)
            if isinstance(text, TranslationFailure)
            else Translation(text=text)
            for text in translated
        ]
        return TranslateAnswer(translations=translations).model_dump(exclude_none=True)

    application.state.batchers.append(batcher)
    add_json_route(application, PATH, TranslateRequest, answer, answer_model=TranslateAnswer)
