"""The client of `POST /translate`, which `lcrag serve` offers with a translator.

A request is `{"texts", "source", "target"}`, where a null source is detected; an answer is `{"translations": [...]}`,
each `{"text"}` or `{"failure", "unavailable"}`.
"""

import functools
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import gin
import pydantic

from lcrag.episodes import Translated, TranslationFailure
from lcrag.errors import UserError
from lcrag.retrieval.remote import USUAL_PATIENCE, HttpService, Patience, ServiceRefusal
from lcrag.retrieval.wire import first_problem

PATH = "/translate"


class Translation(pydantic.BaseModel):
    """The translation of a text, or the reason for its failure and whether the translator itself failed."""

    text: str | None = None
    failure: str | None = None
    unavailable: bool | None = None

    @pydantic.model_validator(mode="after")
    def _has_exactly_one(self) -> "Translation":
        if (self.text is None) == (self.failure is None):
            raise ValueError("a translation has either a text or a failure")
        return self


class TranslateAnswer(pydantic.BaseModel):
    """The answer: one translation per text, in order."""

    translations: list[Translation]


@gin.configurable
class RemoteTranslator:
    """Sends texts to a translation service.

    Args:
      url: Its address, `http://HOST:PORT`.
      patience: Retries and time limits.
      texts: Largest number of texts in a request.
      connections: Concurrent requests.

    Raises:
      UserError: there is no such service.
    """

    def __init__(self, url: str, patience: Patience = USUAL_PATIENCE, texts: int = 64, connections: int = 8):
        self._url, self._texts = url.rstrip("/").removesuffix(PATH) + PATH, texts
        name = f"the translation service at {self._url}"
        try:
            self._ask(HttpService(name, patience.at_the_start()), [], None, "en")
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
        response = service.request("POST", self._url, json={"texts": texts, "source": source, "target": target})
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
            TranslationFailure(each.failure or "", bool(each.unavailable)) if each.text is None else each.text
            for each in translations
        ]
