"""Runs an application until a signal stops it; requests in flight are finished, and slow clients are disconnected."""

import asyncio
import contextlib
import functools
import ipaddress
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from lcrag.errors import UserError

_KEEP_ALIVE_SECONDS = 75
# Time for a client to read an answer, once it has been sent.
_READING_SECONDS = 60.0
# Further connections get 503; this also bounds the bodies in memory.
_CONNECTIONS = 512
_STOPS = (signal.SIGTERM, signal.SIGINT)


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 takes any free port.

    Raises:
      UserError: The address does not exist on this machine, or is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error}): choose another with --gin.serve.host and --gin.serve.port"
        ) from error


def address_of(listener: socket.socket) -> str:
    """Returns the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Returns whether only this machine can reach a listening socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that disconnects clients which do not send a whole request, or read its answer, in time.

    Args:
      arrival_seconds: Time from the connection, or the first byte of a later request, to the last byte of the request.
    """

    def __init__(self, *arguments: Any, arrival_seconds: float, **options: Any):
        super().__init__(*arguments, **options)
        self._arrival_seconds = arrival_seconds
        self._arrival: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `resume_writing` is called when everything has been sent
        self._arrival = self.loop.call_later(self._arrival_seconds, self._refuse_late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if not begun and self.conn.their_state is not h11.SEND_BODY:
            _cancel(self._arrival)
            self._arrival = None
        elif self._arrival is None:
            self._arrival = self.loop.call_later(self._arrival_seconds, self._refuse_late)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(_READING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._arrival)
        _cancel(self._reading)

    def _refuse_late(self) -> None:
        """Answers 408 unless an answer has begun, and closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            sentence = f"the request did not arrive within {self._arrival_seconds:g} seconds"
            content = json.dumps({"detail": sentence}).encode()
            headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
            response = h11.Response(status_code=408, reason=b"Request Timeout", headers=list(headers.items()))
            events = (response, h11.Data(data=content), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def make_server(application: FastAPI, graceful_seconds: float, arrival_seconds: float) -> uvicorn.Server:
    """Returns a server that, when stopped, finishes the requests in flight within `graceful_seconds`.

    Args:
      application: The application.
      graceful_seconds: Maximum time to stop.
      arrival_seconds: Time limit to receive a request.
    """
    protocol = functools.partial(TimedProtocol, arrival_seconds=arrival_seconds)
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=cast(type[asyncio.Protocol], protocol),
            loop="asyncio",  # uvloop need not be installed
            limit_concurrency=_CONNECTIONS,
            log_config=None,
            access_log=False,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(graceful_seconds) + 1,
        )
    )


def serve_on_thread(
    application: FastAPI, listener: socket.socket, graceful_seconds: float = 20.0, arrival_seconds: float = 10.0
) -> tuple[uvicorn.Server, threading.Thread]:
    """Serves on a daemon thread, and returns once requests are accepted; set the server's `should_exit` to stop it.

    Args:
      application: The application.
      listener: The socket to serve on.
      graceful_seconds: Maximum time to stop, and to start.
      arrival_seconds: Time limit to receive a request.
    """
    server = make_server(application, graceful_seconds, arrival_seconds)
    thread = threading.Thread(target=server.run, args=([listener],), name="service", daemon=True)
    thread.start()
    deadline = time.monotonic() + graceful_seconds
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    return server, thread


def run_until_stopped(
    application: FastAPI, listener: socket.socket, graceful_seconds: float, arrival_seconds: float
) -> None:
    """Serves until SIGTERM or SIGINT, finishes the requests in flight, closes the listener and returns."""
    server = make_server(application, graceful_seconds, arrival_seconds)
    with _stopped_by_signals(server):
        server.run(sockets=[listener])


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Stops the server on a signal, even before uvicorn handles signals; the signal that it raises again is ignored."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {each: signal.signal(each, stop) for each in _STOPS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
