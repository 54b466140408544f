"""What else the application of a service may answer."""

from types import TracebackType
from typing import Protocol, runtime_checkable

from fastapi import FastAPI


@runtime_checkable
class Extension(Protocol):
    """What the same application answers beside searches; entered when it starts, left when it ends."""

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""

    def add_to(self, application: FastAPI) -> None:
        """Adds its routes."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> bool | None: ...
