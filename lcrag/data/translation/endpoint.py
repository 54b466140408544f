"""A translator behind an OpenAI-compatible endpoint: a hosted model, or one served by vLLM or the like."""

import concurrent.futures
import functools
import os
import re
from collections.abc import Sequence
from typing import Any

from lcrag.data.languages import language_of
from lcrag.errors import UserError

KEY = "OPENAI_API_KEY"
_PROMPT = (
    "Translate the text from {source} to {target}. It is a question of a quiz or the answer to one. Keep numbers and"
    " dates right, use the usual {target} form of a name, add nothing, and do not answer the question. Write only the"
    " translation, between <translation> and </translation>.\n\nText: {text}"
)
_ANSWER = re.compile(r"<translation>\s*(\S.*?)\s*</translation>", re.DOTALL)


class EndpointTranslator:
    """Asks a chat model for each text, several at a time.

    The key is read from the environment (OPENAI_API_KEY), so that no configuration or log holds it; a server that wants
    none is given a word.

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
        url: str = "http://127.0.0.1:8000/v1",
        concurrency: int = 32,
        attempts: int = 4,
        seconds: float = 120.0,
        max_tokens: int = 1024,
    ):
        self._model, self._url, self._attempts, self._max_tokens = model, url, attempts, max_tokens
        self._concurrency = concurrency
        self._openai = _client_library()
        self._client = self._openai.OpenAI(
            base_url=url, api_key=os.environ.get(KEY, "none"), timeout=seconds, max_retries=attempts - 1
        )

    def __call__(self, texts: Sequence[str], source: str, target: str) -> list[str]:
        """The texts in the language `target`.

        Raises:
          UserError: the endpoint is away, refuses, or does not translate.
        """
        ask = functools.partial(self._translated, source=source, target=target)
        with concurrent.futures.ThreadPoolExecutor(self._concurrency) as workers:
            return list(workers.map(ask, texts))

    def _translated(self, text: str, source: str, target: str) -> str:
        prompt = _PROMPT.format(source=language_of(source).name, target=language_of(target).name, text=text)
        said = ""
        for attempt in range(self._attempts):
            said = self._said(prompt, temperature=0.0 if attempt == 0 else 0.7)
            if found := _ANSWER.search(said):
                return found[1]
        raise UserError(
            f"{self._model} at {self._url} does not translate {text!r} from {source} to {target}, it says"
            f" {said[:200]!r}: choose another model"
        )

    def _said(self, prompt: str, temperature: float) -> str:
        try:
            answer = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                temperature=temperature,
                max_tokens=self._max_tokens,
            )
        except self._openai.OpenAIError as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{self._url} does not answer ({reason}): mend its address, its key or its model"
            ) from error
        return answer.choices[0].message.content or ""


def _client_library() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        raise UserError("translating by an endpoint needs its client: pip install 'lcrag[endpoint]'") from error
    return openai
