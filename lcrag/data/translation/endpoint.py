"""A translator behind an OpenAI-compatible endpoint: a hosted model, or one served by vLLM or the like."""

import functools
import re
from collections.abc import Sequence

from lcrag.data.languages import language_of
from lcrag.episodes.endpoint import LOCAL, ChatEndpoint, asked
from lcrag.errors import UserError

_PROMPT = (
    "Translate the text from {source} to {target}. It is a question of a quiz or the answer to one. Keep numbers and"
    " dates right, use the usual {target} form of a name, add nothing, and do not answer the question. Write only the"
    " translation, between <translation> and </translation>.\n\nText: {text}"
)
_ANSWER = re.compile(r"<translation>\s*(\S.*?)\s*</translation>", re.DOTALL)


class EndpointTranslator:
    """Asks a chat model for each text, several at a time; the key is the one that `ChatEndpoint` reads.

    Args:
      model: Name of the model, as the endpoint knows it.
      url: The endpoint, up to `/v1`.
      concurrency: Requests in flight.
      attempts: Requests for one text, where the endpoint is away or the answer has no translation.
      seconds: That one request may take.
      max_tokens: Longest answer.

    Raises:
      UserError: the client is not installed.
    """

    def __init__(
        self,
        model: str,
        url: str = LOCAL,
        concurrency: int = 32,
        attempts: int = 4,
        seconds: float = 120.0,
        max_tokens: int = 1024,
    ):
        self._endpoint = ChatEndpoint(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)
        self._attempts, self._max_tokens = attempts, max_tokens

    def __call__(self, texts: Sequence[str], source: str, target: str) -> list[str]:
        """The texts in the language `target`.

        Raises:
          UserError: the endpoint is away, refuses, or does not translate.
        """
        return self._endpoint.each(functools.partial(self._translated, source=source, target=target), texts)

    def _translated(self, text: str, source: str, target: str) -> str:
        prompt = _PROMPT.format(source=language_of(source).name, target=language_of(target).name, text=text)
        said = ""
        for attempt in range(self._attempts):
            temperature = 0.0 if attempt == 0 else 0.7
            said = self._endpoint.say(asked(prompt), temperature=temperature, max_tokens=self._max_tokens).text
            if found := _ANSWER.search(said):
                return found[1]
        raise UserError(
            f"{self._endpoint.name} does not translate {text!r} from {source} to {target}, it says {said[:200]!r}:"
            " choose another model"
        )
