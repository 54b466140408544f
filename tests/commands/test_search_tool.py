"""A policy that searches as a tool: in Python, over HTTP and MCP; and hostile requests to every endpoint."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import socket
import sys
import threading
import urllib.parse

import httpx2
import mcp
import pytest
from support import tiny_tokenizer
from support.local_server import served, wait_until
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag import episodes
from lcrag.commands import serve as serving_tool
from lcrag.errors import UserError
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.retries import Patience
from lcrag.retrieval import service as service_module
from lcrag.retrieval.service import ServiceLimits, make_application

BODY_BYTES = 1 << 16
LIMITS = ServiceLimits(
    body_bytes=BODY_BYTES, arrival_seconds=1.0, queries=50, query_characters=1000, passages=10, answer_passages=100
)
TOOL_LIMITS = serving_tool.ToolLimits(question_characters=2000)
ENDPOINTS = ("/retrieve", "/search_tool", "/translate")
MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
TEN_MEGABYTES = 10_000_000
LANGUAGES = ("en", "fi", "zh")
LCRL = functools.partial(hierarchical_search, prompt="atlas", style="atlas", budget=2, passages=2)


def script(context, generation):
    question = context.partition("?")[0]
    return f"<answer> {question}! </answer>" if "<information>" in context else f"<search> {question} </search>"


class CountingRunner(episodes.Runner):
    """Writes down how many questions each run had; waits at its gate first."""

    def run(self, programs, **options):
        self.runs.append(len(programs))
        assert self.gate.wait(20.0)
        return super().run(programs, **options)


def scripted_tool(program=LCRL, *, languages=LANGUAGES, default_language=None, slots=4, context=400, retries=1):
    """The tool; its runner is a `CountingRunner`, its collections are pretended ones."""
    collections, tokenizer = PretendedCollections(languages), tiny_tokenizer()
    runner = CountingRunner(
        sampler=ScriptedSampler(tokenizer, script, slots=slots, context=context),
        tokenizer=tokenizer,
        search=collections.search,
        max_tokens=60,
        retries=Patience(attempts=retries, first_wait_seconds=0.0),
    )
    runner.runs, runner.gate = [], threading.Event()
    runner.gate.set()
    return serving_tool.SearchTool(
        runner=runner,
        program=lambda question: program(question, collections.languages),
        collections=collections,
        default_language=default_language,
    )


# --- In Python ---


def noting_evidence(question, collections):
    """Searches twice at once in several languages, and writes evidence down."""
    yield episodes.Observe(f"{question.text}\n")
    found, _, again = yield (
        episodes.Retrieve((question.text, "other"), ("en", "fi"), 1),
        episodes.Generate(stop=("</search>",)),
        episodes.Retrieve((question.text,), ("en",), 2),
    )
    failed = isinstance(found, episodes.RetrievalFailure) or isinstance(again, episodes.RetrievalFailure)
    return episodes.Outcome(answer="yes", extra={"evidence": None if failed else found[1][1][0].text})


def test_findings_of_lcrl():
    tool = scripted_tool()
    [found] = tool(["Who?"], ["fi"])
    assert (found.question, found.language, found.answer, found.evidence) == ("Who?", "fi", "Who!", None)
    assert (found.searches, found.finished, found.failed_searches) == (("Who",), True, 0)
    assert list(found.passages) == tool.collections.hits("Who", "fi", 2)


def test_any_program_and_its_evidence():
    [found] = scripted_tool(noting_evidence)(["Why?"])
    assert (found.language, found.answer, found.evidence) == ("en", "yes", "other in fi,\n0")
    assert found.searches == ("Why?", "other", "Why?")
    places = [("en", "en-0"), ("fi", "fi-0"), ("en", "en-1")]  # each passage once, in the order found
    assert [(hit.language, hit.id) for hit in found.passages] == places


def test_failures_are_told():
    [found] = scripted_tool(noting_evidence)(["break it?"])
    assert (found.failed_searches, found.passages, found.evidence, found.answer) == (2, (), None, "yes")
    assert found.failure.startswith("a search failed: RuntimeError: something broke")


def test_a_full_context_is_told():
    [found] = scripted_tool(context=32)(["How?"])
    assert (found.finished, found.answer, [hit.id for hit in found.passages]) == (False, None, ["en-0", "en-1"])


def test_findings_depend_on_the_question_alone():
    tool = scripted_tool(slots=3)
    questions = [f"{'very ' * number}long?" for number in range(7)]
    together = tool(questions, ["en", "fi", "zh", "en", "fi", "zh", "en"])
    for found in together:
        assert tool([found.question], [found.language]) == [found]
    assert tool.runner.runs == [7, *[1] * 7], "many questions are one run of the engine"
    assert tool([]) == []


@pytest.mark.parametrize(
    ("questions", "languages", "part"),
    [
        (["Who?", " \n"], None, "is empty"),
        (["Who?"], ["xx"], "'xx'"),
        (["Who?"], ["tlh"], "'tlh'"),  # which prompts cannot name, and which is only searched
        (["Who " * 400 + "?"], None, "context of 400 tokens"),
    ],
)
def test_what_cannot_be_asked(questions, languages, part):
    tool = scripted_tool(languages=["en", "fi", "tlh"])
    with pytest.raises(UserError, match=part):
        tool(questions, languages)
    assert not tool.runner.runs
    assert not tool.collections.calls


def test_the_default_language():
    assert scripted_tool(default_language="zh")(["Who?"])[0].language == "zh"
    assert scripted_tool(languages=["fi"])(["Who?"])[0].language == "fi"
    with pytest.raises(UserError, match="fi, zh"):
        scripted_tool(languages=["fi", "zh"])(["Who?"])
    for wrong in ({"default_language": "de"}, {"context": 17}):
        with pytest.raises(UserError, match="'de'|the context holds 17"):
            scripted_tool(**wrong)


# --- Over HTTP and MCP ---


@contextlib.contextmanager
def serving(tool, limits=TOOL_LIMITS, window_seconds=0.0, host="127.0.0.1"):
    application = make_application(tool.collections, limits=LIMITS, window_seconds=0.0)
    service = serving_tool.ToolService(tool, limits=limits, window_seconds=window_seconds)
    serving_tool.add_tool_route(application, service)
    serving_tool.add_mcp_route(application, service)
    serving_tool.add_translate_route(application, lambda texts, *_: list(texts))
    with served(application, host=host) as url, pytest.MonkeyPatch.context() as patched:
        patched.setattr(serving_tool, "MAX_TEXTS", 50)
        patched.setattr(serving_tool, "MAX_CHARACTERS", 1000)
        yield url


@pytest.fixture(scope="module")
def tool():
    return scripted_tool()


@pytest.fixture(scope="module")
def url(tool):
    with serving(tool) as url:
        yield url


def ask(url, **body):
    return httpx2.post(f"{url}/search_tool", json=body, timeout=60)


def test_findings_as_json(url, tool):
    answer = ask(url, question="Who?", language="fi")
    assert answer.status_code == 200
    [found] = tool(["Who?"], ["fi"])
    assert answer.json() == json.loads(json.dumps(dataclasses.asdict(found)))
    assert ask(url, question="Who?").json() == ask(url, question="Who?", language=None).json()


def test_concurrent_questions_share_runs():
    tool = scripted_tool(slots=4)
    with serving(tool, window_seconds=0.3) as url, concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: ask(url, question=f"q{number}?"), range(6)))
    assert [answer.json()["answer"] for answer in answers] == [f"q{number}!" for number in range(6)]
    assert sum(tool.runner.runs) == 6
    assert len(tool.runner.runs) < 6
    assert max(tool.runner.runs) <= 4


def test_a_question_that_breaks_the_engine_fails_alone():
    def program(question, collections):
        outcome = yield from LCRL(question, collections)
        if question.text == "Bad?":
            raise RuntimeError("something broke")
        if question.text == "Away?":
            raise UserError("the service is away")
        return outcome

    tool = scripted_tool(program)
    with serving(tool, window_seconds=0.3) as url, concurrent.futures.ThreadPoolExecutor(4) as pool:
        good, bad, away = pool.map(lambda text: ask(url, question=text), ["Good?", "Bad?", "Away?"])
        again = ask(url, question="Good?")
    assert good.status_code == again.status_code == 200
    assert good.json() == again.json()
    assert (bad.status_code, away.status_code) == (500, 500)
    assert "RuntimeError: something broke" in bad.json()["detail"]
    assert "the service is away" in away.json()["detail"]


def test_time_limit():
    tool = scripted_tool()
    tool.runner.gate.clear()
    with serving(tool, serving_tool.ToolLimits(answer_seconds=0.5)) as url:
        assert ask(url, question="First?").status_code == 504
        assert httpx2.get(f"{url}/healthz").json()["status"] == "ok", "health does not wait for the engine"
        tool.runner.gate.set()
        assert ask(url, question="Again?").status_code == 200


@pytest.mark.parametrize("era", ["auto", "legacy"])  # how the client shakes hands: as of 2026, and before
def test_an_agent_finds_and_calls_it_over_http(url, era):
    wrong = [{}, {"question": " "}, {"question": "Who?", "language": "xx"}, {"question": "Who " * 300}]
    wrong += [{"question": "Missä?", "lang": "fi"}]

    async def agent():
        async with mcp.Client(f"{url}/mcp", mode=era) as client:
            [described] = (await client.list_tools()).tools
            asked = ({"question": "Who?", "language": "fi"}, *wrong)
            if era == "legacy":
                await client.send_ping()  # which the protocol has no more since 2026
            version = client.server_info.version
            return version, described, [await client.call_tool(described.name, each) for each in asked]

    version, described, (result, *refused) = asyncio.run(agent())
    assert version == importlib.metadata.version("lcrag")
    assert described.input_schema["additionalProperties"] is False
    assert (described.name, described.input_schema["required"]) == ("search", ["question"])
    language = described.input_schema["properties"]["language"]
    assert language["default"] == "en"
    assert "en, fi, zh" in language["description"]
    found = ask(url, question="Who?", language="fi").json()
    assert not result.is_error
    assert result.structured_content == found == json.loads(result.content[0].text)
    assert all(refusal.is_error for refusal in refused)
    parts = ("Field required", "is empty", "'xx'", "context of 400 tokens", "lang\n")
    assert all(part in refusal.content[0].text for part, refusal in zip(parts, refused, strict=True))


def test_what_is_no_call_is_refused(url):
    path = f"{url}/mcp"
    assert httpx2.get(path, headers=MCP).status_code == 405, "no stream that a stopping server would wait for"
    assert httpx2.post(path, content=b"{", headers=MCP).status_code == 400


@pytest.mark.parametrize("path", ["/mcp", "/search_tool", "/translate", "/retrieve", "/healthz", "/collections", "/"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "somewhere.example:80"}, 421),
        ({"host": "127.0.0.1.somewhere.example"}, 421),
        ({"host": "192.168.0.7:8000"}, 421),
        ({"origin": "http://somewhere.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "LOCALHOST:80", "origin": "http://localhost:3000"}, None),
        ({"host": "[::1]:8000", "origin": "https://[::1]"}, None),
    ],
)
def test_a_page_of_another_site_cannot_ask_what_only_this_machine_may(url, path, headers, status):
    answer = httpx2.post(f"{url}{path}", json={}, headers=MCP | headers)
    assert (answer.status_code == status) if status else (answer.status_code not in (403, 421))


def test_a_server_for_others_takes_any_host():
    with serving(scripted_tool(languages=["fi", "zh"]), host="0.0.0.0") as url:
        assert httpx2.get(f"{url}/healthz", headers={"host": "somewhere.example"}).status_code == 200
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = httpx2.post(f"{url}/mcp", json=request, headers=MCP | {"host": "somewhere.example:80"}).json()
    assert [described["name"] for described in answer["result"]["tools"]] == ["search"]


def test_without_the_sdk(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(UserError, match="needs its SDK"):
        serving_tool.serve(None, tool=scripted_tool(), transport="stdio")


# --- Hostile requests ---


@pytest.fixture(scope="module")
def client(url):
    with httpx2.Client(base_url=url, timeout=30.0) as client:
        yield client


def refusal(answer):
    detail = answer.json()["detail"]
    assert "\n" not in detail
    assert len(detail) < 600
    return answer.status_code, detail


def connected(url, content=b""):
    address = urllib.parse.urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30.0)
    connection.sendall(content)
    return connection


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe{}",
        b"[" * 10_000,
        b'{"queries": NaN}',
        b'{"queries": ["a"], "topk": ' + b"9" * 5000 + b"}",
        b'{"question": "\\udfff", "texts": ["\\ud800"], "queries": ["\\ud800"], "target": "en"}',
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
        ("/retrieve", {"topk": 2}, 422, "queries: Field required"),
        ("/retrieve", {"queries": ["a"], "top_k": 2}, 422, "top_k: Extra inputs are not permitted"),
        ("/retrieve", {"queries": ["a"], "topk": True}, 422, "topk: Input should be a valid integer"),
        ("/retrieve", {"queries": ["a"], "topk": 0}, 422, "ask for 1 to 10 passages"),
        ("/retrieve", {"queries": ["a"], "topk": 10**4000}, 422, "topk"),
        ("/retrieve", {"queries": ["a"] * 11, "topk": 10}, 413, "100"),
        ("/retrieve", {"queries": ["a"], "languages": []}, 422, "0 languages for 1 queries"),
        (
            "/retrieve",
            {"queries": ["a"], "languages": ["de"]},
            422,
            "no collection in language 'de': there are en, fi, zh",
        ),
        ("/retrieve", {"queries": ["a"], "languages": ["x" * 9000]}, 422, "languages.0"),
        ("/retrieve", {"queries": ["break it"]}, 500, "RuntimeError: something broke"),
        ("/search_tool", {"question": "a" * 2001}, 413, "2000"),
        ("/search_tool", {"question": "a", "language": "x\n" * 5000}, 422, "language"),
        ("/search_tool", {"question": "a", "lang": "fi"}, 422, "lang: Extra inputs are not permitted"),
        ("/translate", {"texts": ["a"]}, 422, "target: Field required"),
        ("/translate", {"texts": ["a"] * 10_000, "target": "en"}, 413, "50"),
        ("/translate", {"texts": ["a" * 1001], "target": "en"}, 413, "1000"),
        ("/translate", {"texts": ["a"], "target": "x" * 9000}, 422, "target"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals_are_one_sentence(client, path, body, status, part):
    found, detail = refusal(client.post(path, json=body))
    assert (found, part in detail) == (status, True), detail


@pytest.mark.parametrize("path", [*ENDPOINTS, "/mcp", "/nowhere"])
@pytest.mark.parametrize("sent", ["whole", "in parts"])
def test_bodies_of_ten_megabytes(client, path, sent):
    whole = b"x" * TEN_MEGABYTES
    parts = (whole[start : start + BODY_BYTES] for start in range(0, TEN_MEGABYTES, BODY_BYTES))
    answer = client.post(path, content=whole if sent == "whole" else parts, headers=MCP)
    assert refusal(answer) == (413, f"the body is longer than {BODY_BYTES} bytes: ask in several")


def test_bodies_that_arrive_slowly_are_refused(url):
    post = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\n"
    unfinished = {
        "half of a body": post + b"Content-Length: 100\r\n\r\n{",
        "half of a chunk": post + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
        "half of an agent's body": post.replace(b"retrieve", b"mcp") + b"Content-Length: 100\r\n\r\n{",
        "half of a body for nobody": post.replace(b"retrieve", b"nowhere") + b"Content-Length: 100\r\n\r\n{",
    }
    with contextlib.ExitStack() as stack:
        opened = {name: stack.enter_context(connected(url, content)) for name, content in unfinished.items()}
        dripping = stack.enter_context(connected(url, unfinished["half of a body"]))
        dripping.settimeout(0.05)
        answers = {}
        while not answers:  # a byte at a time until there is an answer
            try:
                answers["drips"] = dripping.recv(1 << 12)
            except TimeoutError:
                dripping.send(b"x")
        answers |= {name: connection.recv(1 << 12) for name, connection in opened.items()}
    assert {name: answer[:12] for name, answer in answers.items()} == dict.fromkeys(answers, b"HTTP/1.1 408")


def unanswered(client):
    return client.get("/healthz").json()["unanswered"]


@pytest.mark.parametrize("path", ["/retrieve", "/search_tool", "/mcp"])
def test_what_clients_that_left_have_asked_is_dropped(url, tool, client, path):
    def abandoned(text, count=1):
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
