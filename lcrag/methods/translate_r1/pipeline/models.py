"""Who translates and judges: a chat model behind an endpoint, or a checkpoint on this machine."""

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lcrag.episodes import Completer, Completion
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.asking import Ask
from lcrag.models.completers import LOCAL, ChatEndpoint, user_message
from lcrag.sampling import SamplingParameters


class EndpointModel:
    """A chat model behind an OpenAI-compatible endpoint; its key is OPENAI_API_KEY of the environment.

    Args:
      model: Name of the model, as the endpoint knows it.
      url: The endpoint, up to `/v1`.
      in_flight: Requests at a time.
      attempts: Requests for one answer, where the endpoint is away.
      seconds: That one request may take.

    Raises:
      UserError: the client is not installed, or no request may be in flight.
    """

    def __init__(self, model: str, url: str = LOCAL, in_flight: int = 192, attempts: int = 6, seconds: float = 120.0):
        if in_flight < 1:
            raise UserError(f"EndpointModel.in_flight is {in_flight}: give it a value of 1 or more")
        self.name, self.in_flight = model, in_flight
        self._endpoint = ChatEndpoint(model, url, concurrency=in_flight, attempts=attempts, seconds=seconds)
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="endpoint")

    async def say(self, ask: Ask) -> str:
        """The answer.

        Raises:
          UserError: the endpoint stays away or refuses, or gives no text.
        """
        settings = {"temperature": ask.temperature, "max_tokens": ask.max_tokens, "seed": ask.seed}
        say = functools.partial(self._endpoint.say, user_message(ask.prompt), **settings)
        return (await asyncio.get_running_loop().run_in_executor(self._threads, say)).text


class CompleterModel:
    """A `Completer`, such as a checkpoint on this machine: requests that come while it works make its next batch.

    Args:
      completer: Completes a batch of prompts.
      name: What to call it; answers are remembered under this name.
      in_flight: Requests of a batch at most.

    Raises:
      UserError: a batch is empty.
    """

    def __init__(self, completer: Completer, name: str = "local", in_flight: int = 256):
        if in_flight < 1:
            raise UserError(f"CompleterModel.in_flight is {in_flight}: give it a value of 1 or more")
        self.name, self.in_flight = name, in_flight
        self._completer = completer
        self._waiting: list[tuple[Ask, asyncio.Future[Completion]]] = []
        self._working = asyncio.Lock()

    async def say(self, ask: Ask) -> str:
        """The answer.

        Raises:
          UserError: the prompt leaves no room for an answer.
        """
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, answer))
        await asyncio.sleep(0)  # whoever else is about to ask is in the same batch
        async with self._working:
            batch, self._waiting = self._waiting, []
            if batch:
                await self._complete(batch)
        return (await answer).text

    async def _complete(self, batch: Sequence[tuple[Ask, asyncio.Future[Completion]]]) -> None:
        """Answers all of a batch, or fails all of it."""
        requests = [(ask.prompt, _generation(ask)) for ask, _ in batch]
        try:
            completions = await asyncio.to_thread(self._completer, requests)
        except Exception as error:
            for _, waiting in batch:
                waiting.set_exception(error)
            return
        for (_, waiting), completion in zip(batch, completions, strict=True):
            waiting.set_result(completion)


def _generation(ask: Ask) -> SamplingParameters:
    return SamplingParameters(max_tokens=ask.max_tokens, temperature=ask.temperature, seed=ask.seed)
