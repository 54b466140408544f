"""A translator behind an OpenAI-compatible endpoint: a hosted model, or one served by vLLM or the like."""

from collections.abc import Sequence

from lcrag.episodes import Translated
from lcrag.models.completers import LOCAL, EndpointCompleter
from lcrag.models.model_translator import ModelTranslator


class EndpointTranslator:
    """A `ModelTranslator` over a chat model; the key is the one that `ChatEndpoint` reads.

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
        completer = EndpointCompleter(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)
        self._translator = ModelTranslator(completer, attempts=attempts, max_tokens=max_tokens)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """The texts in the language `target`.

        Raises:
          UserError: the endpoint is away or refuses.
        """
        return self._translator(texts, source, target)
