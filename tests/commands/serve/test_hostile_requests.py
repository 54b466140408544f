"""Malformed, oversized, slow and abandoned requests to every HTTP endpoint of one server."""

import concurrent.futures
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse

import httpx2
import pytest
import requests
from support.local_server import served
from support.pretended_collections import PretendedCollections
from tool_parts import scripted_tool

from lcrag.commands.serve import ToolLimits, ToolService, tool_endpoint
from lcrag.commands.serve.mcp_server import McpEndpoint
from lcrag.models.translation_service import TranslationLimits, translation_endpoint
from lcrag.retrieval.service import ServiceLimits, make_application, server

BODY_BYTES = 1 << 16
LIMITS = ServiceLimits(body_bytes=BODY_BYTES, queries=50, query_characters=1000, passages=10, answer_passages=100)
TOOL_LIMITS = ToolLimits(body_bytes=1 << 14, question_characters=1000)
TRANSLATION_LIMITS = TranslationLimits(body_bytes=BODY_BYTES, texts=50, text_characters=1000)
ENDPOINTS = ("/retrieve", "/search_tool", "/translate")
MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
TEN_MEGABYTES = 10_000_000
ARRIVAL_SECONDS = 3.0


@pytest.fixture(scope="module")
def tool():
    return scripted_tool()


@pytest.fixture(scope="module")
def url(tool):
    service = ToolService(tool, limits=TOOL_LIMITS, window_seconds=0.0)
    extensions = [
        tool_endpoint(service),
        McpEndpoint(service, local_only=True),
        translation_endpoint(lambda texts, *_: list(texts), limits=TRANSLATION_LIMITS),
    ]
    application = make_application(tool.collections, limits=LIMITS, window_seconds=0.0, extensions=extensions)
    with served(application, arrival_seconds=ARRIVAL_SECONDS) as url:
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


def wait_until(condition):
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"NaN",
        b"\xff\xfe{}",
        b"[" * 10_000,
        b'{"queries": ' * 1200,
        b'{"queries": NaN}',
        b'{"queries": ["a"], "topk": 1e999}',
        b'{"queries": ["a"], "topk": ' + b"9" * 5000 + b"}",
        b'{"queries": ["\\ud800"]}',
        b'{"question": "\\udfff", "texts": ["\\ud800"], "target": "en"}',
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
        ("/retrieve", {"queries": ["a"] * 10_000}, 413, "10000 queries in one request: ask at most 50"),
        ("/retrieve", {"queries": ["a" * 1001]}, 413, "a query has 1001 characters: ask at most 1000"),
        ("/retrieve", {"queries": ["a"], "topk": 10**9}, 422, "topk is out of range: ask for 1 to 10 passages"),
        ("/retrieve", {"queries": ["a"], "topk": 10**4000}, 422, "topk is out of range"),
        ("/retrieve", {"queries": ["a"], "topk": -1}, 422, "topk is out of range"),
        ("/retrieve", {"queries": ["a"] * 11, "topk": 10}, 413, "110 passages in one answer: ask for at most 100"),
        ("/retrieve", {"queries": ["a"], "languages": ["x" * 9000]}, 422, "languages.0: String should have at most"),
        ("/search_tool", {"question": "a" * 1001}, 413, "the question has 1001 characters: ask at most 1000"),
        ("/search_tool", {"question": "a" * 20_000}, 413, "the body is longer than 16384 bytes"),
        ("/search_tool", {"question": "a", "language": "x\n" * 5000}, 422, "language: String should have at most"),
        ("/translate", {"texts": ["a"] * 10_000, "target": "en"}, 413, "10000 texts in one request: ask at most 50"),
        ("/translate", {"texts": ["a" * 1001], "target": "en"}, 413, "a text has 1001 characters"),
        ("/translate", {"texts": ["a"], "target": "x" * 9000}, 422, "target: String should have at most"),
        ("/translate", {"texts": ["a"], "target": "en", "source": "x" * 9000}, 422, "source: String should have"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
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


def test_other_clients_see_why_a_body_is_refused(url):
    assert requests.post(f"{url}/retrieve", data=b"x" * TEN_MEGABYTES).status_code == 413


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_sees_why_a_body_is_refused(url):
    words = ["curl", "-s", "--data-binary", "@-", f"{url}/retrieve"]
    said = subprocess.run(words, input=b"x" * TEN_MEGABYTES, capture_output=True)
    assert b"the body is longer than" in said.stdout, said.stderr


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"[" * 5000, 400), (b'{"a":' * 2000, 400), (b"\xff", 400), (b"NaN", 400), (b"x" * 20_000, 413)],
)
def test_malformed_calls_of_agents(client, content, status):
    assert client.post("/mcp", content=content, headers=MCP).status_code == status


@pytest.mark.parametrize(
    "arguments", [{"question": "a" * 1001}, {"question": 1}, {"question": None}, {"question": "a", "x\n": 1}, {}]
)
def test_wrong_calls_of_agents(client, arguments):
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": arguments}}
    result = client.post("/mcp", json=call, headers=MCP).json()["result"]
    assert result["isError"]
    assert "\n" not in result["content"][0]["text"]


def test_what_is_no_request(url):
    for content in (
        b"\x16\x03\x01 TLS\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\nx: " + b"a" * 99_999,
    ):
        with connected(url, content) as connection:
            assert connection.recv(12) == b"HTTP/1.1 400"


def test_slow_clients_are_disconnected(url):
    """Each sends the beginning of a request; some go on, a byte at a time."""
    post = b"POST /retrieve HTTP/1.1\r\nHost: x\r\n"
    unfinished = {
        "nothing": b"",
        "half a line": b"POST /ret",
        "half of the headers": post,
        "half of a body": post + b"Content-Length: 100\r\n\r\n{",
        "half of a chunk": post + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
        "half of an agent's body": post.replace(b"retrieve", b"mcp") + b"Content-Length: 100\r\n\r\n{",
        "half of a body for nobody": post.replace(b"retrieve", b"nowhere") + b"Content-Length: 100\r\n\r\n{",
    }
    with contextlib.ExitStack() as stack:
        opened = {name: stack.enter_context(connected(url, content)) for name, content in unfinished.items()}
        opened["half of a second request"] = stack.enter_context(after_an_answer(url, unfinished["half a line"]))
        dripping = [stack.enter_context(connected(url, content)) for content in (post, unfinished["half of a body"])]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = {f"drips {number}": answer for number, answer in enumerate(pool.map(drip, dripping))}
        answers |= {name: connection.recv(1 << 12) for name, connection in opened.items()}
    late = b'{"detail": "the request did not arrive within 3 seconds"}'
    assert {name: (answer[:12], late in answer) for name, answer in answers.items()} == {
        name: (b"HTTP/1.1 408", True) for name in answers
    }


def after_an_answer(url, content):
    """A connection that has had an answer, and has sent some bytes since."""
    connection = connected(url, b'POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"queries": []}')
    answer = b""
    while not answer.endswith(b'{"result":[]}'):
        answer += connection.recv(1 << 12)
    connection.sendall(content)
    return connection


def drip(connection):
    """Sends a byte at a time until there is an answer, which it returns."""
    connection.settimeout(0.05)
    while True:
        try:
            return connection.recv(1 << 12)
        except TimeoutError:
            connection.send(b"x")


def abandoned(url, path, body):
    """Sends a whole request."""
    content = json.dumps(body).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in MCP.items())
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    return connected(url, head.encode() + content)


def unanswered(client):
    return client.get("/healthz").json()["unanswered"]


def test_searches_of_clients_that_left_are_dropped(url, tool, client):
    calls, gate = tool.collections.calls, tool.collections.gate
    calls.clear()
    gate.clear()
    try:
        with abandoned(url, "/retrieve", {"queries": ["running"]}):
            wait_until(lambda: calls)
            leaving = [abandoned(url, "/retrieve", {"queries": [f"gone {number}"] * 30}) for number in range(8)]
            wait_until(lambda: unanswered(client) == 241)
            for connection in leaving:
                connection.close()
            wait_until(lambda: unanswered(client) == 1)
    finally:
        gate.set()
    assert client.post("/retrieve", json={"queries": ["next"]}).status_code == 200
    assert [queries for queries, *_ in calls] == [["running"], ["next"]]
    assert unanswered(client) == 0


@pytest.mark.parametrize("path", ["/search_tool", "/mcp"])
def test_questions_of_clients_that_left_are_dropped(url, tool, client, path):
    def question(text):
        if path == "/search_tool":
            return {"question": text}
        parameters = {"name": "search", "arguments": {"question": text}}
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": parameters}

    runs, gate = tool.runner.runs, tool.runner.gate
    runs.clear()
    gate.clear()
    try:
        with abandoned(url, path, question("Running?")):
            wait_until(lambda: runs)
            leaving = [abandoned(url, path, question(f"Gone {number}?")) for number in range(4)]
            wait_until(lambda: unanswered(client) == 5)
            for connection in leaving:
                connection.close()
            wait_until(lambda: unanswered(client) == 1)
    finally:
        gate.set()
    assert client.post("/search_tool", json={"question": "Next?"}).json()["answer"] == "Next!"
    assert runs == [1, 1]
    assert unanswered(client) == 0


def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch):
    lost = threading.Event()
    ended = server.TimedProtocol.connection_lost
    monkeypatch.setattr(server, "_READING_SECONDS", 0.3)
    monkeypatch.setattr(server.TimedProtocol, "connection_lost", lambda *each: (ended(*each), lost.set()))
    body = {"queries": ["q" * 1000 + f"{number}" for number in range(100)], "topk": 100}
    with served(make_application(PretendedCollections())) as url, abandoned(url, "/retrieve", body) as connection:
        assert lost.wait(30.0), connection


def test_too_many_connections(monkeypatch):
    monkeypatch.setattr(server, "_CONNECTIONS", 4)
    with served(make_application(PretendedCollections())) as url:
        idle = [connected(url) for _ in range(3)]
        wait_until(lambda: httpx2.get(f"{url}/healthz").status_code == 503)
        for connection in idle:
            connection.close()
        wait_until(lambda: httpx2.get(f"{url}/healthz").status_code == 200)
