"""`POST /search_tool` and `/mcp`: batches of questions, refusals and failures; `test_serve` uses stdio."""

import asyncio
import builtins
import concurrent.futures
import contextlib
import json

import httpx2
import mcp
import pytest
from support.local_server import served
from tool_parts import LCRL, scripted_tool

from lcrag.commands.serve import ToolLimits, ToolService, add_mcp_route, add_tool_route, make_mcp_server, serve
from lcrag.errors import UserError
from lcrag.retrieval.service import make_application

MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
USUAL = ToolLimits()


@contextlib.contextmanager
def serving(tool, limits=USUAL, window_seconds=0.0, host="127.0.0.1"):
    application = make_application(tool.collections)
    service = ToolService(tool, limits=limits, window_seconds=window_seconds)
    add_tool_route(application, service)
    add_mcp_route(application, service, host)
    with served(application) as url:
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
    assert answer.json() == {
        "question": "Who?",
        "language": "fi",
        "answer": "Who!",
        "evidence": None,
        "passages": [
            {"id": hit.id, "title": hit.title, "text": hit.text, "score": hit.score, "language": "fi"}
            for hit in tool.collections.hits("Who", "fi", 2)
        ],
        "searches": ["Who"],
        "failed_searches": 0,
        "failure": None,
        "finished": True,
    }
    assert ask(url, question="Who?").json() == ask(url, question="Who?", language=None).json()
    passages = httpx2.post(f"{url}/retrieve", json={"queries": ["who"], "languages": ["fi"]}).json()["result"][0]
    assert passages[0]["id"] == "fi-0"


def test_concurrent_questions_share_runs():
    tool = scripted_tool(slots=4)
    with serving(tool, window_seconds=0.5) as url, concurrent.futures.ThreadPoolExecutor(6) as pool:
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

    with (
        serving(scripted_tool(program), window_seconds=0.5) as url,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        good, bad, away = pool.map(lambda text: ask(url, question=text), ["Good?", "Bad?", "Away?"])
        again = ask(url, question="Good?")
    assert good.status_code == again.status_code == 200
    assert good.json() == again.json()
    assert (bad.status_code, away.status_code) == (500, 500)
    assert bad.json()["detail"].startswith("the question could not be answered: RuntimeError: something broke")
    assert away.json()["detail"] == "the question could not be answered: the service is away"


def test_time_limit():
    tool = scripted_tool()
    tool.runner.gate.clear()
    with serving(tool, ToolLimits(answer_seconds=0.5)) as url:
        assert ask(url, question="First?").status_code == 504
        assert httpx2.get(f"{url}/healthz").json()["status"] == "ok", "health does not wait for the engine"
        tool.runner.gate.set()
        assert ask(url, question="Again?").status_code == 200


def test_its_description(url):
    paths = httpx2.get(f"{url}/openapi.json").json()
    asked = paths["paths"]["/search_tool"]["post"]
    assert set(asked["requestBody"]["content"]["application/json"]["schema"]["properties"]) == {"question", "language"}
    found = asked["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert {"answer", "evidence", "passages"} <= set(paths["components"]["schemas"][found]["properties"])


@pytest.mark.parametrize("era", ["auto", "legacy"])  # how the client shakes hands: as of 2026, and before
def test_an_agent_finds_and_calls_it_over_http(url, era):
    wrong = [{}, {"question": " "}, {"question": "Who?", "language": "xx"}, {"question": "Who " * 300}]

    async def agent():
        async with mcp.Client(f"{url}/mcp", mode=era) as client:
            [described] = (await client.list_tools()).tools
            asked = ({"question": "Who?", "language": "fi"}, *wrong)
            return described, [await client.call_tool(described.name, each) for each in asked]

    described, (result, *refused) = asyncio.run(agent())
    assert (described.name, described.input_schema["required"]) == ("search", ["question"])
    language = described.input_schema["properties"]["language"]
    assert language["default"] == "en"
    assert "en, fi, zh" in language["description"]
    found = ask(url, question="Who?", language="fi").json()
    assert not result.is_error
    assert result.structured_content == found == json.loads(result.content[0].text)
    assert all(refusal.is_error for refusal in refused)
    parts = ("Field required", "is empty", "'xx'", "context of 400 tokens")
    assert all(part in refusal.content[0].text for part, refusal in zip(parts, refused, strict=True))


def test_calls_of_one_agent_share_a_run():
    service = ToolService(tool := scripted_tool(), window_seconds=0.2)

    async def agent():
        async with mcp.Client(make_mcp_server(service)) as client:
            asked = ({"question": f"q{number}?"} for number in range(4))
            return await asyncio.gather(*(client.call_tool("search", each) for each in asked))

    results = asyncio.run(agent())
    assert [result.structured_content["answer"] for result in results] == [f"q{number}!" for number in range(4)]
    assert tool.runner.runs == [4]


def test_what_is_no_call_is_refused(url):
    path = f"{url}/mcp"
    assert httpx2.get(path, headers=MCP).status_code == 405, "no stream that a stopping server would wait for"
    assert httpx2.post(path, content=b"{", headers=MCP).status_code == 400
    foreign = httpx2.post(path, json={}, headers=MCP | {"host": "somewhere.example:80"})
    assert foreign.status_code == 421, "a page of another site cannot call what only this machine may"


def test_a_server_for_others_takes_any_host():
    with serving(scripted_tool(languages=["fi", "zh"]), host="0.0.0.0") as url:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = httpx2.post(f"{url}/mcp", json=request, headers=MCP | {"host": "somewhere.example:80"}).json()
    assert [described["name"] for described in answer["result"]["tools"]] == ["search"]


def test_without_the_sdk(monkeypatch):
    importing = builtins.__import__

    def without(name, *arguments):
        if name.partition(".")[0] == "mcp":
            raise ModuleNotFoundError("No module named 'mcp'", name="mcp")
        return importing(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="needs its SDK"):
        serve(None, tool=scripted_tool(), transport="stdio")
