"""`POST /translate` beside `/retrieve`: a translator for many callers, their texts collected into few calls.

A refusal is a 4xx or 5xx status with `{"detail": one sentence}`. A text that the translator does not translate is a
failure in its place, and no refusal.
"""

import asyncio
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, cast

import pydantic
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from lcrag.episodes import Translated, Translator
from lcrag.errors import UserError
from lcrag.models.translation_wire import PATH, TranslateAnswer, TranslateRequest, answer_of
from lcrag.retrieval.service import Batcher, Overloaded, read_body
from lcrag.retrieval.wire import first_problem

Direction: TypeAlias = tuple[str | None, str]  # source, target
_RETRY = {"Retry-After": "1"}
_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": TranslateRequest.model_json_schema()}}}
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationLimits:
    """What one request may ask of a served translator, and how much may wait.

    Attributes:
      body_bytes: Longest body of a request.
      texts: Most texts in one request.
      text_characters: Longest text.
      waiting_texts: Most texts that wait, all requests together; beyond it a client is told to come back.
      body_seconds: For a request to arrive.
      answer_seconds: For its answer, waiting included.
    """

    body_bytes: int = 1 << 22
    texts: int = 1024
    text_characters: int = 20_000
    waiting_texts: int = 1 << 14
    body_seconds: float = 10.0
    answer_seconds: float = 300.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise UserError(
                    f"TranslationLimits.{field.name} is {getattr(self, field.name)}: nothing would be accepted"
                )


USUAL_TRANSLATION_LIMITS = TranslationLimits()


class TranslationEndpoint:
    """The endpoint as an extension of the retrieval service's application.

    Args:
      translator: Called on one thread of the endpoint's own, for all texts of a direction that wait.
      limits: What a request may ask for.
      window_seconds: How long a request that finds the translator idle waits for others.
      batch_texts: A call takes no further request once it holds this many texts.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        limits: TranslationLimits = USUAL_TRANSLATION_LIMITS,
        window_seconds: float = 0.003,
        batch_texts: int = 256,
    ):
        self._translator, self._limits = translator, limits
        self._batcher: Batcher[str, Translated] = Batcher(
            self._translate_together,
            called="texts",
            window_seconds=window_seconds,
            batch_items=batch_texts,
            waiting_items=limits.waiting_texts,
        )

    @property
    def running(self) -> bool:
        """Whether texts are being translated."""
        return self._batcher.running

    async def __aenter__(self) -> "TranslationEndpoint":
        await self._batcher.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._batcher.__aexit__(*failure)

    def add_to(self, application: FastAPI) -> None:
        """Adds `POST /translate`."""
        application.add_api_route(
            PATH, self._answer, methods=["POST"], openapi_extra=_BODY, response_model=TranslateAnswer
        )

    async def _answer(self, request: Request) -> JSONResponse:
        asked = self._checked(await read_body(request, self._limits.body_bytes, self._limits.body_seconds))
        translated = await self._translated(asked) if asked.texts else ()
        return JSONResponse(answer_of(translated).model_dump(exclude_none=True))

    def _checked(self, body: bytes) -> TranslateRequest:
        try:
            asked = TranslateRequest.model_validate_json(body)
        except pydantic.ValidationError as error:
            raise HTTPException(422, first_problem(error)) from error
        if len(asked.texts) > self._limits.texts:
            raise HTTPException(413, f"{len(asked.texts)} texts in one request: ask at most {self._limits.texts}")
        if (longest := max(map(len, asked.texts), default=0)) > self._limits.text_characters:
            raise HTTPException(413, f"a text has {longest} characters: ask in {self._limits.text_characters}")
        return asked

    async def _translated(self, asked: TranslateRequest) -> Sequence[Translated]:
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                return await self._batcher.ask(asked.texts, (asked.source, asked.target))
        except TimeoutError as error:
            raise HTTPException(504, f"no answer within {self._limits.answer_seconds} seconds") from error
        except Overloaded as error:
            raise HTTPException(503, f"{error}: come back later", headers=_RETRY) from error
        except UserError as error:  # the translator is away itself, and trying again does not mend it
            raise HTTPException(503, str(error)) from error
        except Exception as error:  # the batcher has logged it
            raise HTTPException(500, f"the translation failed: {type(error).__name__}: {error}") from error

    def _translate_together(self, texts: Sequence[str], direction: Hashable) -> Sequence[Translated]:
        source, target = cast(Direction, direction)
        return self._translator(texts, source, target)
