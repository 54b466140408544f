"""Servers for tests: an application in a thread of this process, a fake chat model, and stopping another process."""

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from lcrag.retrieval.service import address_of, listen, make_server

_PATIENCE_SECONDS = 20.0
_LONGEST_SECONDS = 60.0
_CONTINUE = b"HTTP/1.1 100"
# prompt -> the model's text; a number: the HTTP status with which the request is refused
Speaker = Callable[[str], str | int]


@contextlib.contextmanager
def served(application: FastAPI, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
    """Serves an application while the block runs; yields its address, `http://127.0.0.1:PORT`."""
    listener = listen(host, port)
    server = make_server(application, listener, _PATIENCE_SECONDS)
    thread = threading.Thread(target=server.run, args=([listener],), name="service", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server")
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_SECONDS)
        listener.close()


def stand_in_chat(speak: Speaker) -> FastAPI:
    """Returns an application that answers `/v1/chat/completions` with what `speak` says to the last message."""
    application = FastAPI()

    @application.post("/v1/chat/completions")
    def complete(body: dict[str, Any]) -> Any:
        text = speak(body["messages"][-1]["content"])
        if isinstance(text, int):
            return JSONResponse({"error": {"message": "not now"}}, text)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}

    return application


@contextlib.contextmanager
def scripted(*answers: Any) -> Iterator[tuple[str, list[tuple[float, str, Any]]]]:
    """A server that gives the answers one after the other, the last one for ever: (status, headers, body) each.

    An answer or a body may be a function of the request, which is its JSON or its parameters; a status of None closes
    the connection. Gives its address and what it is asked: (time, path, request).
    """
    asked: list[tuple[float, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = answers[min(len(asked), len(answers) - 1)]
            address = urllib.parse.urlsplit(self.path)
            request = json.loads(body) if body else dict(urllib.parse.parse_qsl(address.query))
            asked.append((time.monotonic(), address.path, request))
            status, headers, said = answer(request) if callable(answer) else answer
            if status is None:
                return self.connection.close()
            said = said(request) if callable(said) else said
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answered_while_stopping(
    stop: Callable[[], object], address: str, path: str, body: Mapping[str, Any]
) -> tuple[int, Any]:
    """Returns the status and JSON of the answer to a POST request that a server is receiving when `stop` is called.

    The request's body is sent once the server refuses further connections.
    """
    content = json.dumps(body).encode()
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=_LONGEST_SECONDS)
    with contextlib.closing(connection):
        connection.putrequest("POST", path)
        for name, value in {"Content-Length": str(len(content)), "Expect": "100-continue"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        # The server asks for the body; the connection reads that itself later.
        answer = connection.sock.recv(len(_CONTINUE), socket.MSG_PEEK | socket.MSG_WAITALL)
        assert answer == _CONTINUE, f"the server answers {answer!r} before it has read the body"
        stop()
        wait_until(lambda: refuses(connection.host, connection.port), f"{address} to refuse connections")
        connection.send(content)
        response = connection.getresponse()
        return response.status, json.load(response)


def wait_until(condition: Callable[[], Any], what: str = "a condition") -> None:
    """Returns when a condition holds; after a minute a TimeoutError names `what` was waited for."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_LONGEST_SECONDS} seconds for {what}")
        time.sleep(0.01)


def refuses(host: str, port: int) -> bool:
    """Returns whether an address refuses connections."""
    try:
        socket.create_connection((host, port), timeout=_LONGEST_SECONDS).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False
