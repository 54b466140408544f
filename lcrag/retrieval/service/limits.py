"""What the service accepts."""

import dataclasses

from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """What one request may ask for, and how much may wait.

    Attributes:
      body_bytes: Longest body of a request.
      queries: Most queries in one request.
      passages: Most passages for one query.
      waiting_queries: Most queries that wait for a search, all requests together; beyond it a client is told to come
        back.
      body_seconds: For a request to arrive.
      search_seconds: For its answer, waiting included.
    """

    body_bytes: int = 1 << 22
    queries: int = 2048
    passages: int = 100
    waiting_queries: int = 1 << 14
    body_seconds: float = 10.0
    search_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise UserError(f"ServiceLimits.{field.name} is {getattr(self, field.name)}: nothing would be accepted")


USUAL_LIMITS = ServiceLimits()
