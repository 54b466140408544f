"""Malformed, oversized, slow and abandoned requests to every HTTP endpoint of one server."""

import contextlib
import json
import socket
import urllib.parse

import httpx2
import pytest
from support.local_server import served, wait_until
from support.pretended_collections import PretendedCollections
from tool_parts import scripted_tool

from lcrag.commands.serve import (
    ToolLimits,
    ToolService,
    TranslationLimits,
    add_mcp_route,
    add_tool_route,
    add_translate_route,
)
from lcrag.retrieval import service as service_module
from lcrag.retrieval.service import ServiceLimits, make_application

BODY_BYTES = 1 << 16
LIMITS = ServiceLimits(
    body_bytes=BODY_BYTES,
    arrival_seconds=1.0,
    queries=50,
    query_characters=1000,
    passages=10,
    answer_passages=100,
)
TOOL_LIMITS = ToolLimits(question_characters=1000)
TRANSLATION_LIMITS = TranslationLimits(texts=50, text_characters=1000)
ENDPOINTS = ("/retrieve", "/search_tool", "/translate")
MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
TEN_MEGABYTES = 10_000_000


@pytest.fixture(scope="module")
def tool():
    return scripted_tool()


@pytest.fixture(scope="module")
def url(tool):
    application = make_application(tool.collections, limits=LIMITS, window_seconds=0.0)
    service = ToolService(tool, limits=TOOL_LIMITS, window_seconds=0.0)
    add_tool_route(application, service)
    add_mcp_route(application, service, "127.0.0.1")
    add_translate_route(application, lambda texts, *_: list(texts), limits=TRANSLATION_LIMITS)
    with served(application) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with httpx2.Client(base_url=url, timeout=30.0) as client:
        yield client


def refusal(answer):
    """The status and the sentence of a refusal, which is one short line."""
    detail = answer.json()["detail"]
    assert "\n" not in detail
    assert len(detail) < 600
    return answer.status_code, detail


def connected(url, content=b""):
    """A connection that has sent some bytes."""
    address = urllib.parse.urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30.0)
    connection.sendall(content)
    return connection


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe{}",
        b"[" * 10_000,
        b'{"queries": NaN}',
        b'{"queries": ["a"], "topk": ' + b"9" * 5000 + b"}",
        b'{"question": "\\udfff", "texts": ["\\ud800"], "queries": ["\\ud800"], "target": "en"}',
        b'{"question": {}, "texts": {}, "queries": {}}',
        b'{"' + b"key\\n" * 3000 + b'": 1}',
    ],
    ids=lambda body: body[:30].decode("latin-1"),
)
def test_malformed_bodies(client, path, body):
    assert refusal(client.post(path, content=body))[0] == 422


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/retrieve", {"queries": ["a"] * 10_000}, 413, "50"),
        ("/retrieve", {"queries": ["a" * 1001]}, 413, "1000"),
        ("/retrieve", {"queries": ["a"], "topk": 10**4000}, 422, "topk"),
        ("/retrieve", {"queries": ["a"], "topk": -1}, 422, "topk"),
        ("/retrieve", {"queries": ["a"] * 11, "topk": 10}, 413, "100"),
        ("/retrieve", {"queries": ["a"], "languages": ["x" * 9000]}, 422, "languages.0"),
        ("/search_tool", {"question": "a" * 1001}, 413, "1000"),
        ("/search_tool", {"question": "a", "language": "x\n" * 5000}, 422, "language"),
        ("/search_tool", {"question": "a", "lang": "fi"}, 422, "lang: Extra inputs are not permitted"),
        ("/translate", {"texts": ["a"] * 10_000, "target": "en"}, 413, "50"),
        ("/translate", {"texts": ["a" * 1001], "target": "en"}, 413, "1000"),
        ("/translate", {"texts": ["a"], "target": "x" * 9000}, 422, "target"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_limits(client, path, body, status, part):
    found, detail = refusal(client.post(path, json=body))
    assert (found, part in detail) == (status, True), detail


@pytest.mark.parametrize("path", [*ENDPOINTS, "/mcp", "/nowhere"])
@pytest.mark.parametrize("sent", ["whole", "in parts"])
def test_bodies_of_ten_megabytes(client, path, sent):
    whole = b"x" * TEN_MEGABYTES
    parts = (whole[start : start + BODY_BYTES] for start in range(0, TEN_MEGABYTES, BODY_BYTES))
    answer = client.post(path, content=whole if sent == "whole" else parts, headers=MCP)
    assert refusal(answer) == (413, f"the body is longer than {BODY_BYTES} bytes: ask in several")


def test_what_is_no_request(url):
    for content in (
        b"\x16\x03\x01 TLS\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\nx: " + b"a" * 99_999,
    ):
        with connected(url, content) as connection:
            assert connection.recv(12) == b"HTTP/1.1 400"


def test_bodies_that_arrive_slowly_are_refused(url):
    """Each sends the beginning of a body; some go on, a byte at a time."""
    post = b"POST /retrieve HTTP/1.1\r\nHost: x\r\n"
    unfinished = {
        "half of a body": post + b"Content-Length: 100\r\n\r\n{",
        "half of a chunk": post + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
        "half of an agent's body": post.replace(b"retrieve", b"mcp") + b"Content-Length: 100\r\n\r\n{",
        "half of a body for nobody": post.replace(b"retrieve", b"nowhere") + b"Content-Length: 100\r\n\r\n{",
    }
    with contextlib.ExitStack() as stack:
        opened = {name: stack.enter_context(connected(url, content)) for name, content in unfinished.items()}
        dripping = stack.enter_context(connected(url, unfinished["half of a body"]))
        answers = {"drips": drip(dripping)}
        answers |= {name: connection.recv(1 << 12) for name, connection in opened.items()}
    assert {name: answer[:12] for name, answer in answers.items()} == dict.fromkeys(answers, b"HTTP/1.1 408")


def drip(connection):
    """Sends a byte at a time until there is an answer, which it returns."""
    connection.settimeout(0.05)
    while True:
        try:
            return connection.recv(1 << 12)
        except TimeoutError:
            connection.send(b"x")


def unanswered(client):
    return client.get("/healthz").json()["unanswered"]


@pytest.mark.parametrize("path", ["/retrieve", "/search_tool", "/mcp"])
def test_what_clients_that_left_have_asked_is_dropped(url, tool, client, path):
    def abandoned(text, count=1):
        """A connection that has sent a whole request."""
        body = {"question": text}
        if path == "/retrieve":
            body = {"queries": [text] * count}
        elif path == "/mcp":
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": body}}
        content = json.dumps(body).encode()
        headers = "".join(f"{name}: {value}\r\n" for name, value in MCP.items())
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:80\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        return connected(url, head.encode() + content)

    searches = path == "/retrieve"
    calls, gate = (tool.collections.calls, tool.collections.gate) if searches else (tool.runner.runs, tool.runner.gate)
    calls.clear()
    gate.clear()
    try:
        with abandoned("Running?"):
            wait_until(lambda: calls)
            leaving = [abandoned(f"Gone {number}?", 30) for number in range(4)]
            wait_until(lambda: unanswered(client) == (121 if searches else 5))
            for connection in leaving:
                connection.close()
            wait_until(lambda: unanswered(client) == 1)
    finally:
        gate.set()
    assert client.post("/retrieve", json={"queries": ["next"]}).status_code == 200
    assert client.post("/search_tool", json={"question": "Next?"}).json()["answer"] == "Next!"
    assert len(calls) == (3 if searches else 2)  # the search of the last question is one too
    assert unanswered(client) == 0


def test_too_many_connections(monkeypatch):
    monkeypatch.setattr(service_module, "CONNECTIONS", 4)
    with served(make_application(PretendedCollections())) as url:
        idle = [connected(url) for _ in range(3)]
        wait_until(lambda: httpx2.get(f"{url}/healthz").status_code == 503)
        for connection in idle:
            connection.close()
        wait_until(lambda: httpx2.get(f"{url}/healthz").status_code == 200)
