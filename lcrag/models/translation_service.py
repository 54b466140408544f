"""`POST /translate` of the service: the endpoint, which batches the texts of many callers, and its client.

A request is `{"texts", "source", "target"}`, an answer `{"translations": [{"text"} or {"failure"}]}`. A rejected
request gets a 4xx or 5xx status with `{"detail": one sentence}`; a text that cannot be translated gets a failure.
"""

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, cast

import pydantic
from fastapi import HTTPException

from lcrag.episodes import Translated, TranslationFailure, Translator
from lcrag.errors import UserError
from lcrag.limits import Count, Positive
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, HttpService, Patience, ServiceRefusal
from lcrag.retrieval.service import Batcher, JsonEndpoint, RequestLimits, refusing
from lcrag.retrieval.wire import LanguageCode, first_problem

PATH = "/translate"
Direction: TypeAlias = tuple[str | None, str]  # source, target
# Attempts to reach the service when a client starts; few, so a client without a server fails soon.
_FIRST_ATTEMPTS = 3


class TranslateRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """A request of `POST /translate`."""

    texts: list[str] = pydantic.Field(description="The texts to translate.")
    source: LanguageCode | None = pydantic.Field(
        default=None, description="Code of their language; null: it is detected."
    )
    target: LanguageCode = pydantic.Field(description="Code of the language to translate into.")


class Translation(pydantic.BaseModel):
    """The translation of a text, or the reason for its failure."""

    text: str | None = None
    failure: str | None = None
    unavailable: bool | None = pydantic.Field(default=None, description="Whether the translator itself failed.")

    @pydantic.model_validator(mode="after")
    def _has_exactly_one(self) -> "Translation":
        if (self.text is None) == (self.failure is None):
            raise ValueError("a translation has either a text or a failure")
        return self


class TranslateAnswer(pydantic.BaseModel):
    """The answer: one translation per text, in order."""

    translations: list[Translation]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationLimits(RequestLimits):
    """Limits of requests to a served translator.

    Attributes:
      texts: Most texts in one request.
      text_characters: Longest text.
      waiting_texts: Most texts that wait, over all requests; beyond it requests are refused with 503.
      answer_seconds: Time for an answer, waiting included.
    """

    texts: Count = 1024
    text_characters: Count = 20_000
    waiting_texts: Count = 1 << 14
    answer_seconds: Positive = 300.0


USUAL_TRANSLATION_LIMITS = TranslationLimits()


def translation_endpoint(
    translator: Translator,
    *,
    limits: TranslationLimits = USUAL_TRANSLATION_LIMITS,
    window_seconds: float = 0.003,
    batch_texts: int = 256,
) -> JsonEndpoint[TranslateRequest]:
    """Returns `POST /translate` as an extension of the service's application.

    Args:
      translator: Called on the endpoint's own thread, for all waiting texts of a direction.
      limits: Limits of a request.
      window_seconds: How long a request that finds the translator idle waits for others.
      batch_texts: A call takes no further request once it holds this many texts.
    """

    def translate_together(texts: Sequence[str], direction: Hashable) -> Sequence[Translated]:
        return translator(texts, *cast(Direction, direction))

    batcher: Batcher[str, Translated] = Batcher(
        translate_together,
        called="texts",
        window_seconds=window_seconds,
        batch_items=batch_texts,
        waiting_items=limits.waiting_texts,
    )

    async def answer(asked: TranslateRequest) -> dict[str, Any]:
        _check_limits(asked, limits)
        translated = await _translate(batcher, asked, limits.answer_seconds) if asked.texts else ()
        translations = [
            Translation(failure=each.reason, unavailable=each.unavailable or None)
            if isinstance(each, TranslationFailure)
            else Translation(text=each)
            for each in translated
        ]
        return TranslateAnswer(translations=translations).model_dump(exclude_none=True)

    return JsonEndpoint(PATH, TranslateRequest, answer, limits, batcher, answer_model=TranslateAnswer)


def _check_limits(asked: TranslateRequest, limits: TranslationLimits) -> None:
    if len(asked.texts) > limits.texts:
        raise HTTPException(413, f"{len(asked.texts)} texts in one request: ask at most {limits.texts}")
    if (longest := max(map(len, asked.texts), default=0)) > limits.text_characters:
        raise HTTPException(413, f"a text has {longest} characters: ask at most {limits.text_characters}")


async def _translate(
    batcher: Batcher[str, Translated], asked: TranslateRequest, seconds: float
) -> Sequence[Translated]:
    async with refusing("the translation failed", seconds):
        try:
            translated = await batcher.ask(asked.texts, (asked.source, asked.target))
        except UserError as error:  # the translator itself is unreachable, and a retry does not help
            raise HTTPException(503, str(error)) from error
    return translated


class RemoteTranslator:
    """Sends texts to a translation service.

    Args:
      url: Its address, `http://HOST:PORT`.
      patience: Retries and time limits.
      texts: Most texts in one request.
      connections: Concurrent requests.

    Raises:
      UserError: there is no such service.
    """

    def __init__(self, url: str, patience: Patience = USUAL_PATIENCE, texts: Count = 64, connections: Count = 8):
        self._url, self._texts = url.rstrip("/").removesuffix(PATH) + PATH, texts
        name = f"the translation service at {self._url}"
        first = dataclasses.replace(patience, attempts=min(_FIRST_ATTEMPTS, patience.attempts))
        try:
            self._ask(HttpService(name, first), [], None, "en")
        except ServiceRefusal as error:
            raise UserError(f"{error}: it refuses even an empty request, so look into its log") from error
        self._service = HttpService(name, patience, connections)
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix="remote translation")

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; raises `ServiceRefusal` if the service refuses one of the requests."""
        ask = functools.partial(self._ask, self._service, source=source, target=target)
        parts = [list(texts[start : start + self._texts]) for start in range(0, len(texts), self._texts)]
        return list(itertools.chain.from_iterable(self._executor.map(ask, parts)))

    def _ask(self, service: HttpService, texts: list[str], source: str | None, target: str) -> list[Translated]:
        response = service.post(self._url, {"texts": texts, "source": source, "target": target})
        try:
            translations = TranslateAnswer.model_validate_json(response.content).translations
            if len(translations) != len(texts):
                raise ValueError(f"it answers {len(translations)} texts of {len(texts)}")
        except ValueError as error:
            problem = first_problem(error) if isinstance(error, pydantic.ValidationError) else str(error)
            raise UserError(
                f"{service.name} does not speak the /translate API ({problem}): check its address"
            ) from error
        return [
            each.text if each.text is not None else TranslationFailure(each.failure or "", bool(each.unavailable))
            for each in translations
        ]
