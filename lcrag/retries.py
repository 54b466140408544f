"""Time limits and retries of what is asked: searches, translations and models at endpoints."""

import contextlib
import dataclasses
import email.utils
import time
from collections.abc import Callable
from typing import TypeVar

import gin
import tenacity

from lcrag.errors import UserError, typed

T = TypeVar("T")
# Statuses after which a service may answer later.
LATER = frozenset({408, 425, 429, 502, 503, 504})
# From here on an internal error of the service, perhaps caused by this request; the runner then tries each alone.
BROKEN = 500
_ATTEMPTS_WHEN_BROKEN = 3


class ServiceRefusal(RuntimeError):
    """The service refused this request; others may succeed."""


class ServiceUnavailable(UserError):
    """No host answers at present; the same request may succeed later."""


class TemporaryFailure(Exception):
    """A temporary failure of an attempt: an internal error (`broken`), or a service that asks to wait."""

    def __init__(self, reason: str, *, broken: bool = False, busy: bool = False, wait_seconds: float = 0.0):
        super().__init__(reason)
        self.broken, self.busy, self.wait_seconds = broken, busy, wait_seconds


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts and retries of requests.

    The wait before the second attempt doubles before each later one; random jitter up to the first wait is added, so
    clients do not retry in step.
    """

    connect_seconds: float = 5.0
    answer_seconds: float = 90.0  # for each part of an answer
    attempts: int = 8
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0  # also of waits that a service asks for; one too long ends the retries

    def __post_init__(self) -> None:
        if min(self.connect_seconds, self.answer_seconds, self.attempts) <= 0 or not self.first_wait_seconds >= 0:
            raise UserError(f"{self}: make at least 1 attempt, with positive timeouts and no negative waits")

    def call(
        self,
        once: Callable[[], T],
        may_pass: Callable[[BaseException], bool] = lambda error: isinstance(error, TemporaryFailure),
    ) -> T:
        """Returns `once()`, called again after errors that may pass; the last of them is raised."""
        first, longest = self.first_wait_seconds, self.longest_wait_seconds
        usual = tenacity.wait_exponential_jitter(initial=first, max=longest, jitter=first)

        def asked(state: tenacity.RetryCallState) -> float:
            """Returns the seconds that the service asks to wait."""
            return getattr(state.outcome and state.outcome.exception(), "wait_seconds", 0.0)

        def stop(state: tenacity.RetryCallState) -> bool:
            broken = getattr(state.outcome and state.outcome.exception(), "broken", False)
            allowed = min(self.attempts, _ATTEMPTS_WHEN_BROKEN) if broken else self.attempts
            return state.attempt_number >= allowed or asked(state) > self.attempts * longest

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=lambda state: max(min(asked(state), longest), usual(state)),
            stop=stop,
            reraise=True,
        )
        return retrying(once)

    def ask(self, service: str, once: Callable[[], T]) -> T:
        """Returns `once()`, a request to the service with this name, called again after a `TemporaryFailure`.

        Raises:
          ServiceRefusal: It failed by an internal error in every attempt.
          ServiceUnavailable: It was unreachable, or too busy, in every attempt.
        """
        attempts = 0

        def counted() -> T:
            nonlocal attempts
            attempts += 1
            return once()

        try:
            return self.call(counted)
        except TemporaryFailure as error:
            if error.broken:
                raise ServiceRefusal(f"{service} failed {attempts} times: {error}") from error
            mend = try_later(error.wait_seconds) if error.busy else "start it, or correct its address"
            raise ServiceUnavailable(
                f"{service} does not answer after {attempts} attempts ({error}): {mend}"
            ) from error

    def at_the_start(self) -> "Patience":
        """Returns the patience of a client's first request: if it starts before its server, it should fail soon."""
        return dataclasses.replace(self, attempts=min(3, self.attempts))


USUAL_PATIENCE = Patience()


def asked_seconds(retry_after: str) -> float:
    """Returns the seconds that the header Retry-After asks to wait, as a number or until a date; 0 without one."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after))
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0


def try_later(wait_seconds: float) -> str:
    """Returns the advice for a service that is there, but has no time now."""
    when = f"in {wait_seconds:,.0f} seconds, as it asks" if wait_seconds else "later"
    return f"it is busy or not ready: run the same command again {when}"
