"""Calls to what is outside the device slots, tried again where they fail."""

import dataclasses
import time
from collections.abc import Callable
from typing import TypeVar

from absl import logging

from lcrag.errors import UserError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Retries:
    """How a failing search or translation is tried again.

    Attributes:
      attempts: Calls in all before the requests of a batch are tried one by one, a last time each.
      backoff_seconds: Wait before the second call; doubled before each later one.
    """

    attempts: int = 3
    backoff_seconds: float = 0.5


ONCE = Retries(attempts=1)


@dataclasses.dataclass(frozen=True)
class Failed:
    """A call that failed in every attempt, and why the last one did."""

    reason: str


def attempted(call: Callable[[], T], retries: Retries, called: str) -> T | Failed:
    """What a call returns, tried again while it fails.

    Args:
      call: Whatever it raises is shown in the log and never ends a run, unless it is a user's mistake.
      retries: How often, and with which waits.
      called: What it is, for the log.

    Raises:
      UserError: the call raised it.
    """
    for attempt in range(1, retries.attempts + 1):
        if attempt > 1:
            time.sleep(retries.backoff_seconds * 2 ** (attempt - 2))
        try:
            return call()
        except UserError:
            raise
        except Exception as error:
            failure = Failed(f"{type(error).__name__}: {error}")
            logging.warning("%s failed (attempt %d): %s", called, attempt, failure.reason)
    return failure
