"""HTTP requests that are retried while a service is unavailable.

An unreachable or misconfigured service ends the run (`UserError`); the same command continues it later. If the service
rejects a request (`ServiceRefusal`), only this request fails.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import Any

import httpx2
import tenacity

from lcrag.errors import UserError, without_secrets
from lcrag.limits import Count, NonNegative, Positive, check_fields
from lcrag.retrieval.wire import one_line

# Retried: the service may answer later.
_LATER = frozenset({408, 425, 429, 502, 503, 504})
# An internal error of the service, perhaps caused by this request; the runner then tries each request alone.
_BROKEN = 500
_ATTEMPTS_WHEN_BROKEN = 3
# Not retried: the address or the key is wrong.
_MISCONFIGURED = frozenset({401, 403, 404, 405})
# Google's answer to a wrong key, with status 400.
_WRONG_KEY = "API_KEY_INVALID"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts and retries of requests to a service.

    Attributes:
      connect_seconds: Timeout of a connection.
      answer_seconds: Timeout of each part of an answer.
      attempts: Requests in all.
      first_wait_seconds: Wait before the second attempt, doubled before each later one; random jitter up to this value
        is added, so clients do not retry in step.
      longest_wait_seconds: Upper bound of every wait, including those that the service asks for.
    """

    connect_seconds: Positive = 5.0
    answer_seconds: Positive = 90.0
    attempts: Count = 8
    first_wait_seconds: NonNegative = 0.5
    longest_wait_seconds: NonNegative = 30.0

    def __post_init__(self) -> None:
        check_fields(self)


USUAL_PATIENCE = Patience()


class ServiceRefusal(RuntimeError):
    """The service refused this request; others may succeed."""


class ServiceUnavailable(UserError):
    """No host answers at present; the same request may succeed later."""


class _TemporaryFailure(Exception):
    """A temporary failure of an attempt.

    Attributes:
      broken: Whether the service had an internal error, which this request may have caused.
      wait_seconds: The wait that the service asks for; 0 if it does not.
    """

    def __init__(self, reason: str, *, broken: bool = False, wait_seconds: float = 0.0):
        super().__init__(reason)
        self.broken, self.wait_seconds = broken, wait_seconds


def shown(text: str) -> str:
    """Replaces users, passwords and keys in the addresses of a text by ***, even in malformed addresses."""
    return without_secrets(re.sub(r"\S+@", "***@", text))


def hide_addresses() -> None:
    """Keeps the HTTP client from logging addresses, which may hold passwords and keys."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)


class HttpService:
    """A client of one service; thread-safe.

    Args:
      name: Its name in messages, with the address, whose user and password are not shown.
      patience: Timeouts and retries.
      connections: Largest number of concurrent connections.
    """

    def __init__(self, name: str, patience: Patience, connections: int = 8):
        self.name, self._patience = shown(name), patience
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(patience.answer_seconds, connect=patience.connect_seconds),
            limits=httpx2.Limits(max_connections=connections),
        )
        hide_addresses()

    def get(self, url: str, parameters: Mapping[str, Any] | None = None) -> httpx2.Response:
        """Returns the successful answer to a GET request.

        Raises:
          UserError: The service is unreachable after all attempts, or its address or key is wrong.
          ServiceRefusal: The service refuses this request.
        """
        return self._patiently("GET", url, {"params": dict(parameters or {})})

    def post(self, url: str, payload: Any) -> httpx2.Response:
        """Returns the successful answer to a POST request with a JSON value; errors are those of `get`."""
        return self._patiently("POST", url, {"json": payload})

    def _patiently(self, method: str, url: str, content: dict[str, Any]) -> httpx2.Response:
        patience = self._patience
        backoff = tenacity.wait_exponential_jitter(
            initial=patience.first_wait_seconds, max=patience.longest_wait_seconds, jitter=patience.first_wait_seconds
        )

        def wait(state: tenacity.RetryCallState) -> float:
            asked = min(_failure(state).wait_seconds, patience.longest_wait_seconds)
            return max(asked, backoff(state))

        def stop(state: tenacity.RetryCallState) -> bool:
            most = min(patience.attempts, _ATTEMPTS_WHEN_BROKEN) if _failure(state).broken else patience.attempts
            return state.attempt_number >= most

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TemporaryFailure), wait=wait, stop=stop, reraise=True
        )
        try:
            return retrying(self._once, method, url, content)
        except _TemporaryFailure as error:
            attempts = retrying.statistics["attempt_number"]
            if error.broken:
                raise ServiceRefusal(f"{self.name} failed {attempts} times: {error}") from error
            raise ServiceUnavailable(
                f"{self.name} does not answer after {attempts} attempts ({error}): start it, or correct its address"
            ) from error

    def _once(self, method: str, url: str, content: dict[str, Any]) -> httpx2.Response:
        try:
            response = self._client.request(method, url, **content)
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
            raise UserError(f"{self.name} is not an address: write http://HOST:PORT") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise _TemporaryFailure(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        if response.is_success:
            return response
        reason = f"status {response.status_code}: {_detail(response)}"
        if response.status_code in _LATER:
            raise _TemporaryFailure(reason, wait_seconds=_seconds_to_wait(response))
        if response.status_code >= _BROKEN:
            raise _TemporaryFailure(reason, broken=True)
        if response.status_code in _MISCONFIGURED or response.is_redirect or _WRONG_KEY in response.text:
            raise UserError(f"{self.name} rejects the request ({reason}): check its address and key")
        raise ServiceRefusal(f"{self.name} refuses ({reason})")


def _failure(state: tenacity.RetryCallState) -> _TemporaryFailure:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, _TemporaryFailure)
    return error


def _seconds_to_wait(response: httpx2.Response) -> float:
    """Returns the seconds of `Retry-After`; 0 without the header or with a date."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0


def _detail(response: httpx2.Response) -> str:
    """Returns the reason of a failure: `detail`, `error` or `error.message` of the JSON answer, else its text."""
    try:
        reason = response.json()
        reason = reason.get("detail", reason.get("error", reason)) if isinstance(reason, dict) else reason
        reason = reason.get("message", reason) if isinstance(reason, dict) else reason
    except ValueError:
        reason = response.text
    return one_line(reason)
