"""The models that translate and judge, and a persistent cache through which each request is made only once."""

import asyncio
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import gin

from lcrag.episodes import Completer, Completion, GenerationFailure
from lcrag.errors import UserError, typed
from lcrag.models.completers import LOCAL, ChatEndpoint, user_message
from lcrag.sampling import SamplingParameters

TRANSLATOR, JUDGE = "translator", "judge"  # the roles


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One request to a model: its answer depends on nothing else."""

    role: str
    prompt: str
    max_tokens: int  # of the answer
    number: int = 0  # of the answer to this prompt; the first is greedy, later ones are sampled

    def key(self, model: str) -> str:
        """Identifies the request to a model, in 32 hexadecimal digits."""
        content = json.dumps([model, *dataclasses.astuple(self)], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @property
    def sampling(self) -> SamplingParameters:
        """Sampling parameters of the answer; the seed has 31 bits and depends on the request alone."""
        seed = int(self.key(""), 16) % 2**31
        return SamplingParameters(max_tokens=self.max_tokens, temperature=0.7 if self.number else 0.0, seed=seed)


@runtime_checkable
class Model(Protocol):
    """A model that answers up to `in_flight` requests concurrently; `name` identifies it wherever it is served."""

    name: str
    in_flight: int

    async def answer(self, request: ModelRequest) -> str:
        """Returns the whole answer; a `UserError` (unavailable, or refused) ends the run."""


class RequestCache:
    """Sends requests to models and stores every answer; an asynchronous context manager.

    On exit, or after a failed request, it starts no further requests, but waits for the answers in flight and stores
    them.

    Args:
      models: Role -> the model that has it.
      answered: Request key -> stored answer.
      store: Stores rows `{"key", "role", "answer"}` durably; called on a thread, one call at a time.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        answered: Mapping[str, str],
        store: Callable[[Sequence[Mapping[str, Any]]], None],
    ):
        for role, model in models.items():
            if model.in_flight < 1:
                raise UserError(f"the {role}'s in_flight is {model.in_flight}: set it to 1 or more")
        self._models, self._answered, self._store = models, answered, store
        self._slots = {role: asyncio.Semaphore(model.in_flight) for role, model in models.items()}
        self._sent: dict[str, asyncio.Task[str]] = {}
        self._unwritten: list[Mapping[str, Any]] = []
        self._writing = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> "RequestCache":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await asyncio.gather(*self._sent.values(), return_exceptions=True)

    async def __call__(self, request: ModelRequest) -> str:
        """Returns the answer to a request; equal requests are sent once."""
        if request.role not in self._models:
            raise UserError(
                f"there is no {request.role} to ask: bind translations.{request.role} = @{request.role}/EndpointModel()"
            )
        key = request.key(self._models[request.role].name)
        if key in self._answered:
            return self._answered[key]
        if key not in self._sent:
            self._sent[key] = asyncio.create_task(self._send(key, request))
        return await asyncio.shield(self._sent[key])  # a cancelled caller does not cancel the request

    async def _send(self, key: str, request: ModelRequest) -> str:
        async with self._slots[request.role]:
            if self._closed:
                raise asyncio.CancelledError
            try:
                answer = await self._models[request.role].answer(request)
            except Exception:
                self._closed = True
                raise
            # One write stores all rows that arrived during the previous one: a durable write takes milliseconds.
            self._unwritten.append({"key": key, "role": request.role, "answer": answer})
            async with self._writing:
                rows, self._unwritten = self._unwritten, []
                if rows:
                    await asyncio.to_thread(self._store, rows)
        return answer


@gin.register
@typed
class EndpointModel:
    """A chat model served by an OpenAI-compatible endpoint; its key is OPENAI_API_KEY of the environment.

    Args:
      model: Name of the model at the endpoint.
      url: The endpoint, up to `/v1`.
      in_flight: Maximum concurrent requests.
      attempts, seconds: Attempts per answer while the endpoint is unavailable, and the timeout of each.
    """

    def __init__(self, model: str, url: str = LOCAL, in_flight: int = 192, attempts: int = 6, seconds: float = 120.0):
        self.name, self.in_flight = model, in_flight
        self._endpoint = ChatEndpoint(model, url, attempts=attempts, seconds=seconds)
        self._threads = ThreadPoolExecutor(max(1, in_flight), thread_name_prefix="endpoint")

    async def answer(self, request: ModelRequest) -> str:
        """Returns the endpoint's answer."""
        chosen, messages = request.sampling, user_message(request.prompt)
        say = functools.partial(
            self._endpoint.say, messages, temperature=chosen.temperature, max_tokens=chosen.max_tokens, seed=chosen.seed
        )
        return (await asyncio.get_running_loop().run_in_executor(self._threads, say)).text


@gin.register
@typed
class CompleterModel:
    """A `Completer`, such as a local checkpoint; requests that arrive during a batch form the next one.

    Args:
      completer: Completes a batch of prompts.
      name: Name of the model, under which answers are stored.
      in_flight: Maximum requests in a batch.
    """

    def __init__(self, completer: Completer, name: str = "local", in_flight: int = 256):
        self.name, self.in_flight = name, in_flight
        self._completer = completer
        self._waiting: list[tuple[ModelRequest, asyncio.Future[Completion | GenerationFailure]]] = []
        self._working = asyncio.Lock()

    async def answer(self, request: ModelRequest) -> str:
        """Returns the answer from the batch that the request is part of; a failed batch fails all of it."""
        answer: asyncio.Future[Completion | GenerationFailure] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        await asyncio.sleep(0)  # lets other tasks add their requests to the batch
        async with self._working:
            batch, self._waiting = self._waiting, []
            prompts = [(waiting.prompt, waiting.sampling) for waiting, _ in batch]
            try:
                completions = await asyncio.to_thread(self._completer, prompts) if batch else ()
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), completion in zip(batch, completions, strict=True):
                    future.set_result(completion)
        completion = await answer
        if isinstance(completion, GenerationFailure):
            raise UserError(f"{self.name} fails: {completion.reason}")
        return completion.text
