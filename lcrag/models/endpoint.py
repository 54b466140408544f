"""A chat model behind an OpenAI-compatible endpoint: hosted, or served by vLLM or the like."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from lcrag.episodes.requests import Completion
from lcrag.errors import UserError
from lcrag.sampling.generation import Generation
from lcrag.sampling.stop import text_until_stop

KEY = "OPENAI_API_KEY"
LOCAL = "http://127.0.0.1:8000/v1"
T = TypeVar("T")
U = TypeVar("U")


@dataclasses.dataclass(frozen=True)
class Said:
    """What a chat model said.

    Attributes:
      text: All of it.
      cut: Whether it was cut at the longest answer.
      tokens: How many it took, 0 if the endpoint does not tell.
    """

    text: str
    cut: bool
    tokens: int


def asked(prompt: str) -> list[dict[str, str]]:
    """A chat of one message."""
    return [{"role": "user", "content": prompt}]


class ChatEndpoint:
    """Asks a chat model, several questions at a time.

    The client of OpenAI tries a request again, with growing pauses and as the server's Retry-After says, when the
    endpoint is away, too busy or late. The key is read from the environment (OPENAI_API_KEY), so that no configuration
    or log holds it; a server that wants none is given a word.

    Args:
      model: Name of the model, as the endpoint knows it.
      url: The endpoint, up to `/v1`.
      concurrency: Requests in flight.
      attempts: Requests for one answer at most.
      seconds: That one request may take.

    Raises:
      UserError: the client is not installed.
    """

    def __init__(
        self, model: str, url: str = LOCAL, *, concurrency: int = 32, attempts: int = 6, seconds: float = 120.0
    ):
        self.name = f"{model} at {url}"
        self._model, self._url, self._concurrency, self._attempts = model, url, concurrency, attempts
        self._openai = _client_library()
        self._client = self._openai.OpenAI(
            base_url=url, api_key=os.environ.get(KEY, "none"), timeout=seconds, max_retries=attempts - 1
        )

    def say(self, messages: Sequence[Mapping[str, str]], **settings: Any) -> Said:
        """What the model says next in a chat.

        Args:
          messages: Each with its `role` and `content`.
          **settings: Of the request, such as `temperature` and `max_tokens`.

        Raises:
          UserError: the endpoint stays away or refuses, or the model gives no text again and again.
        """
        reason = "it is no chat completion"
        for _ in range(self._attempts):
            answer = self._answer(messages, settings)
            for choice in getattr(answer, "choices", None) or ():
                if choice.message.content is not None:
                    tokens = answer.usage.completion_tokens if answer.usage else 0
                    return Said(choice.message.content, choice.finish_reason == "length", tokens)
                reason = f"finish_reason {choice.finish_reason}"
        raise UserError(f"{self.name} answers without a text ({reason}): allow it more tokens, or choose another model")

    def each(self, ask: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """`ask` of every item, as many at a time as may be in flight; after a failure or a signal nothing new is asked,
        and what is in flight is not waited for.

        Raises:
          UserError: one of them failed.
        """
        workers = concurrent.futures.ThreadPoolExecutor(self._concurrency)
        try:
            asked = [workers.submit(ask, item) for item in items]
            done, _ = concurrent.futures.wait(asked, return_when=concurrent.futures.FIRST_EXCEPTION)
            for failure in filter(None, (future.exception() for future in done)):
                raise failure
            return [future.result() for future in asked]
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

    def _answer(self, messages: Sequence[Mapping[str, str]], settings: dict[str, Any]) -> Any:
        try:
            return self._client.chat.completions.create(model=self._model, messages=list(messages), **settings)
        except self._openai.OpenAIError as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{self._url} does not answer ({reason}): mend its address, its key or its model"
            ) from error


class EndpointCompleter:
    """A model behind an endpoint, as a `Completer`: it tells no log-probabilities.

    Stop strings are looked for here, since endpoints leave them out of their texts.

    Args:
      model: Name of the model, as the endpoint knows it.
      url: The endpoint, up to `/v1`.
      concurrency: Requests in flight.
      attempts: Requests for one completion at most.
      seconds: That one request may take.

    Raises:
      UserError: the client is not installed.
    """

    def __init__(self, model: str, url: str = LOCAL, concurrency: int = 32, attempts: int = 6, seconds: float = 120.0):
        self._endpoint = ChatEndpoint(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)

    def __call__(self, requests: Sequence[tuple[str, Generation]]) -> list[Completion]:
        """Completes a batch of prompts.

        Raises:
          UserError: the endpoint stays away or refuses, or gives no text.
        """
        return self._endpoint.each(self._completed, requests)

    def _completed(self, request: tuple[str, Generation]) -> Completion:
        prompt, generation = request
        said = self._endpoint.say(
            asked(prompt),
            temperature=generation.temperature,
            top_p=generation.top_p,
            max_tokens=generation.max_tokens,
            seed=_seed(generation),
        )
        text = text_until_stop(said.text.encode(), generation.stop)
        stopped = any(text.endswith(stop) for stop in generation.stop)
        return Completion(
            text=text, finish_reason="stop" if stopped else "length" if said.cut else "eos", tokens=said.tokens
        )


def _seed(generation: Generation) -> int:
    """A number of 31 bits that names the generation's random stream."""
    return int(np.random.SeedSequence((generation.seed, generation.episode)).generate_state(1)[0] >> 1)


def _client_library() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        raise UserError("a model behind an endpoint needs its client: pip install 'lcrag[endpoint]'") from error
    return openai
