"""Requests to models, each made once: what was answered is on disk before it is used, and never asked for again."""

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
      role: Who is asked: a key of `AskedOnce`'s models.
      prompt: The prompt.
      max_tokens: Longest answer.
      number: Which answer to this prompt, from 0: the first is greedy, all later ones are sampled.
    """

    role: str
    prompt: str
    max_tokens: int
    number: int = 0

    @property
    def temperature(self) -> float:
        """Of the answer."""
        return 0.7 if self.number else 0.0

    def key(self, model: str) -> str:
        """Names the request to a model, in 32 hexadecimal digits."""
        content = json.dumps([model, *dataclasses.astuple(self)], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @property
    def seed(self) -> int:
        """A number of 31 bits that names the answer's random stream."""
        return int(self.key(""), 16) % 2**31


@runtime_checkable
class Model(Protocol):
    """Answers requests, many at a time.

    Attributes:
      name: Tells it from other models, wherever it is served.
      in_flight: Requests that it may have at a time.
    """

    name: str
    in_flight: int

    async def say(self, ask: Ask) -> str:
        """The answer, all of it.

        Raises:
          UserError: the model is away or refuses; this ends the run.
        """


class AskedOnce:
    """Asks models, and keeps what they said; an asynchronous context manager.

    At its end, or once a request has failed, no other is begun any more; the answers to those in flight are waited for
    and kept, as they are paid.

    Args:
      models: Role -> who has it.
      answered: Key -> answer of the requests that were made before.
      keep: Writes rows `{"key", "role", "answer"}` where they survive a kill; called on a thread, one call at a time.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        answered: Mapping[str, str],
        keep: Callable[[Sequence[Mapping[str, Any]]], None],
    ):
        self._models, self._answered, self._keep = models, dict(answered), keep
        self._room = {role: asyncio.Semaphore(model.in_flight) for role, model in models.items()}
        self._under_way: dict[str, asyncio.Task[str]] = {}
        self._unwritten: list[Mapping[str, Any]] = []
        self._writing = asyncio.Lock()
        self._ended = False

    async def __aenter__(self) -> "AskedOnce":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._ended = True
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def __call__(self, ask: Ask) -> str:
        """The answer to a request; the same request is made once, however often and by whomever it is asked.

        Raises:
          UserError: the model is away or refuses, or nobody has the role.
        """
        if ask.role not in self._models:
            raise UserError(
                f"there is no {ask.role} to ask: bind translations.{ask.role} = @{ask.role}/EndpointModel()"
            )
        key = ask.key(self._models[ask.role].name)
        if key in self._answered:
            return self._answered[key]
        if key not in self._under_way:
            self._under_way[key] = asyncio.create_task(self._made(key, ask))
        return await asyncio.shield(self._under_way[key])  # whoever stops waiting leaves the answer to the file

    async def _made(self, key: str, ask: Ask) -> str:
        try:
            async with self._room[ask.role]:
                if self._ended:
                    raise asyncio.CancelledError
                answer = await self._said(ask)
                await self._write({"key": key, "role": ask.role, "answer": answer})
            self._answered[key] = answer
            return answer
        finally:
            del self._under_way[key]

    async def _said(self, ask: Ask) -> str:
        try:
            return await self._models[ask.role].say(ask)
        except Exception:
            self._ended = True
            raise

    async def _write(self, row: Mapping[str, Any]) -> None:
        """Writes a row, together with all that came while the rows before were being written."""
        self._unwritten.append(row)
        async with self._writing:
            rows, self._unwritten = self._unwritten, []
            if rows:
                await asyncio.to_thread(self._keep, rows)
