"""A translator behind HTTP: what `lcrag serve` serves at `/translate`, or another service that speaks alike."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pydantic

from lcrag.episodes import Translated
from lcrag.errors import UserError
from lcrag.models.translation_wire import PATH, translations_of
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, HttpService, Patience, ServiceRefusal
from lcrag.retrieval.wire import first_problem

# Whoever starts a client before its server should be told soon.
_FIRST_ATTEMPTS = 3


class RemoteTranslator:
    """Sends texts to a translation service.

    Args:
      url: Its address, `http://HOST:PORT`.
      patience: How long it is waited for.
      texts: Most in one request.
      connections: Requests at a time.

    Raises:
      UserError: there is no such service.
    """

    def __init__(self, url: str, patience: Patience = USUAL_PATIENCE, texts: int = 64, connections: int = 8):
        self._url, self._texts = url.rstrip("/").removesuffix(PATH) + PATH, texts
        name = f"the translation service at {self._url}"
        first = dataclasses.replace(patience, attempts=min(_FIRST_ATTEMPTS, patience.attempts))
        try:
            self._ask(HttpService(name, first), [], None, "en")
        except ServiceRefusal as error:
            raise UserError(f"{error}: it does not even translate nothing, so look into its log") from error
        self._service = HttpService(name, patience, connections)
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix="remote translation")

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """The texts in the language `target`.

        Raises:
          UserError: the service is away or misconfigured.
          ServiceRefusal: it will not answer one of the requests.
        """
        ask = functools.partial(self._ask, self._service, source=source, target=target)
        parts = [list(texts[start : start + self._texts]) for start in range(0, len(texts), self._texts)]
        return list(itertools.chain.from_iterable(self._executor.map(ask, parts)))

    def _ask(self, service: HttpService, texts: list[str], source: str | None, target: str) -> list[Translated]:
        response = service.post(self._url, {"texts": texts, "source": source, "target": target})
        try:
            return translations_of(response.content, len(texts))
        except ValueError as error:
            problem = first_problem(error) if isinstance(error, pydantic.ValidationError) else str(error)
            raise UserError(
                f"{service.name} does not speak the /translate API ({problem}): check its address"
            ) from error
