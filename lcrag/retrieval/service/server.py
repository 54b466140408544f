"""Runs an application until a signal stops it; requests in flight are finished."""

import contextlib
import ipaddress
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from lcrag.errors import UserError

_KEEP_ALIVE_SECONDS = 75
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


def make_server(application: FastAPI, graceful_seconds: float) -> uvicorn.Server:
    """Returns a server that, when stopped, finishes the requests in flight within `graceful_seconds`."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(graceful_seconds) + 1,
        )
    )


def run_until_stopped(application: FastAPI, listener: socket.socket, graceful_seconds: float) -> None:
    """Serves until SIGTERM or SIGINT, finishes the requests in flight, closes the listener and returns."""
    server = make_server(application, graceful_seconds)
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
