"""Models other than the policy: behind an OpenAI-compatible endpoint, or on this machine."""

import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from lcrag.episodes import Chat, Completer, Completion, completion_of
from lcrag.errors import UserError
from lcrag.policy import Tokenizer
from lcrag.sampling import SamplingParameters, SlotSampler, continue_contexts
from lcrag.sampling.stop import text_until_stop

KEY = "OPENAI_API_KEY"
LOCAL = "http://127.0.0.1:8000/v1"
T = TypeVar("T")
U = TypeVar("U")


def complete_prompts(model: Completer, prompts: Mapping[int, str], generation: SamplingParameters) -> dict[int, str]:
    """Returns the texts of completions, all requested in one batch; an exception of the model propagates.

    Args:
      model: Completes prompts.
      prompts: Number -> prompt; the number names its random stream.
      generation: How each prompt is continued.
    """
    if not prompts:
        return {}
    completions = model([(prompt, dataclasses.replace(generation, episode=n)) for n, prompt in prompts.items()])
    return {number: completion.text for number, completion in zip(prompts, completions, strict=True)}


class CompletionJudge:
    """A model that judges: returns its text for each of many prompts, requested in one batch.

    The first attempt is greedy, so a judgement can be repeated; later ones sample, since a greedy model would repeat
    itself.

    Args:
      model: Completes prompts: a second checkpoint (`SamplerCompleter`) or an endpoint (`EndpointCompleter`).
      temperature: Of the attempts after the first.
      max_tokens: Longest answer.
      seed: Of sampling.

    Raises:
      UserError: the temperature is not above 0.
    """

    def __init__(self, model: Completer, temperature: float = 0.7, max_tokens: int = 512, seed: int = 0):
        if temperature <= 0:
            raise UserError(f"CompletionJudge.temperature is {temperature}: later attempts need one above 0")
        self._model, self._temperature, self._max_tokens, self._seed = model, temperature, max_tokens, seed

    def __call__(self, prompts: Sequence[str], attempt: int = 0) -> list[str]:
        """Returns the model's texts in order; an exception of the model propagates.

        Args:
          prompts: What to judge.
          attempt: Number of earlier attempts with these prompts.
        """
        temperature = self._temperature if attempt else 0.0
        generation = SamplingParameters(max_tokens=self._max_tokens, temperature=temperature, seed=self._seed + attempt)
        return list(complete_prompts(self._model, dict(enumerate(prompts)), generation).values())


class SamplerCompleter:
    """A model of any architecture on this machine, as a `Completer`.

    Args:
      sampler: Its slots; nothing else may use them.
      tokenizer: Its tokenizer.
      chat: How prompts are put to it if it has a chat template.

    Raises:
      UserError: the chat template cannot do what `chat` asks.
    """

    def __init__(self, sampler: SlotSampler, tokenizer: Tokenizer, chat: Chat):
        chat.check(tokenizer)
        self._sampler, self._tokenizer, self._chat = sampler, tokenizer, chat

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion]:
        """Completes a batch of prompts.

        Raises:
          UserError: a prompt leaves no room for a token in the model's context; or it is called on another thread than
            the policy's while several processes share the devices, which would then run different computations.
        """
        if jax.process_count() > 1 and threading.current_thread() is not threading.main_thread():
            raise UserError(
                f"a second model on the same devices cannot answer during rollouts in {jax.process_count()} processes:"
                " serve it, and name its endpoint instead"
            )
        contexts = [(self._chat.opening(self._tokenizer, prompt).ids, generation) for prompt, generation in requests]
        sampled = continue_contexts(self._sampler, contexts)
        return [completion_of(each, self._tokenizer) for each in sampled]


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """The reply of a chat model.

    Attributes:
      text: The whole text.
      cut: Whether it was cut at the token limit.
      tokens: Number of its tokens, 0 if the endpoint does not report it.
    """

    text: str
    cut: bool
    tokens: int


def user_message(prompt: str) -> list[dict[str, str]]:
    """Returns a chat of one message."""
    return [{"role": "user", "content": prompt}]


class ChatEndpoint:
    """Sends requests to a chat model, several at a time.

    OpenAI's client retries with growing waits, and as the server's Retry-After says, when the endpoint is unreachable,
    overloaded or slow. The key is read from the environment (OPENAI_API_KEY), so no configuration or log holds it;
    servers that need none receive a placeholder.

    Args:
      model: Name of the model at the endpoint.
      url: The endpoint, up to `/v1`.
      concurrency: Requests in flight.
      attempts: Most requests for one answer.
      seconds: Timeout of one request.

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

    def say(self, messages: Sequence[Mapping[str, str]], **settings: Any) -> ChatReply:
        """Returns the model's next message in a chat.

        Args:
          messages: Each with its `role` and `content`.
          **settings: Of the request, such as `temperature` and `max_tokens`.

        Raises:
          UserError: the endpoint stays unreachable or refuses, or the model returns no text in any attempt.
        """
        reason = "it is no chat completion"
        for _ in range(self._attempts):
            answer = self._answer(messages, settings)
            for choice in getattr(answer, "choices", None) or ():
                if choice.message.content is not None:
                    tokens = answer.usage.completion_tokens if answer.usage else 0
                    return ChatReply(choice.message.content, choice.finish_reason == "length", tokens)
                reason = f"finish_reason {choice.finish_reason}"
        raise UserError(f"{self.name} answers without a text ({reason}): allow it more tokens, or choose another model")

    def each(self, ask: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Returns `ask` of every item, `concurrency` at a time.

        After a failure or a signal no request is started, and those in flight are not waited for.

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
                f"{self._url} does not answer ({reason}): check its address, its key and its model"
            ) from error


class EndpointCompleter:
    """A `ChatEndpoint` as a `Completer`; its completions have no log-probabilities.

    Stop strings are searched for here, since endpoints leave them out of their texts.
    """

    def __init__(self, model: str, url: str = LOCAL, concurrency: int = 32, attempts: int = 6, seconds: float = 120.0):
        self._endpoint = ChatEndpoint(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion]:
        return self._endpoint.each(self._completed, requests)

    def _completed(self, request: tuple[str, SamplingParameters]) -> Completion:
        prompt, generation = request
        reply = self._endpoint.say(
            user_message(prompt),
            temperature=generation.temperature,
            top_p=generation.top_p,
            max_tokens=generation.max_tokens,
            seed=_seed(generation),
        )
        text = text_until_stop(reply.text.encode(), generation.stop)
        stopped = any(text.endswith(stop) for stop in generation.stop)
        return Completion(
            text=text, finish_reason="stop" if stopped else "length" if reply.cut else "eos", tokens=reply.tokens
        )


def _seed(generation: SamplingParameters) -> int:
    """Returns a 31-bit number that names the generation's random stream."""
    return int(np.random.SeedSequence((generation.seed, generation.episode)).generate_state(1)[0] >> 1)


def _client_library() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        raise UserError("a model behind an endpoint needs its client: pip install 'lcrag[endpoint]'") from error
    return openai
