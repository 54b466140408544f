"""The tool for agents, called by the official client in process and over HTTP; `test_serve_tool` uses stdio."""

import asyncio
import builtins
import contextlib
import json
import sys

import httpx2
import mcp
import pytest
from support.local_server import served
from tool_parts import scripted_tool

from lcrag.commands.serve import ToolService
from lcrag.commands.serve.mcp_server import add_mcp_route, make_server
from lcrag.commands.serve.routes import add_tool_route
from lcrag.commands.serve.serving import serve_over_stdio
from lcrag.errors import UserError
from lcrag.retrieval.service import make_application

ERA = {"auto": "auto", "initialize": "legacy"}  # how the client shakes hands: as of 2026, and before


@pytest.fixture(scope="module")
def tool():
    return scripted_tool()


@pytest.fixture(scope="module")
def url(tool):
    with serving(tool) as url:
        yield url


@contextlib.contextmanager
def serving(tool, host="127.0.0.1"):
    application, service = make_application(tool.collections), ToolService(tool, window_seconds=0.0)
    add_tool_route(application, service)
    add_mcp_route(application, service, host)
    with served(application) as url:
        yield url


def calls(server, *arguments, **options):
    """The results of some calls by one client, made at once."""

    async def ask():
        async with mcp.Client(server, **options) as client:
            return await asyncio.gather(*(client.call_tool("search", each) for each in arguments))

    return asyncio.run(ask())


@pytest.mark.parametrize("era", ERA)
def test_an_agent_finds_and_calls_it_over_http(url, tool, era):
    async def agent():
        async with mcp.Client(f"{url}/mcp", mode=ERA[era]) as client:
            [described] = (await client.list_tools()).tools
            return described, await client.call_tool(described.name, {"question": "Who?", "language": "fi"})

    described, result = asyncio.run(agent())
    assert described.name == "search"
    assert described.input_schema["required"] == ["question"]
    language = described.input_schema["properties"]["language"]
    assert language["default"] == "en"
    assert "en, fi, zh" in language["description"]
    assert not result.is_error
    found = httpx2.post(f"{url}/search_tool", json={"question": "Who?", "language": "fi"}).json()
    assert result.structured_content == found == json.loads(result.content[0].text)
    assert [passage["id"] for passage in found["passages"]] == ["fi-0", "fi-1"]


def test_calls_of_one_agent_share_a_run():
    service = ToolService(tool := scripted_tool(), window_seconds=0.2)

    async def agent():
        async with mcp.Client(make_server(service)) as client:
            asked = ({"question": f"q{number}?"} for number in range(4))
            return await asyncio.gather(*(client.call_tool("search", each) for each in asked))

    results = asyncio.run(agent())
    assert [result.structured_content["answer"] for result in results] == [f"q{number}!" for number in range(4)]
    assert tool.runner.runs == [4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "Field required"),
        ({"question": " "}, "the question is empty: ask something"),
        ({"question": "Who?", "language": "xx"}, "questions cannot be asked in language 'xx': there are en, fi, zh"),
        ({"question": "Who " * 300}, "the question does not fit the policy's context of 400 tokens"),
    ],
)
def test_wrong_arguments_are_told_to_the_agent(url, arguments, sentence):
    [result] = calls(f"{url}/mcp", arguments)
    [content] = result.content
    assert result.is_error
    assert sentence in content.text


def test_what_is_no_call_is_refused(url):
    path = f"{url}/mcp"
    accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    assert httpx2.get(path, headers=accepted).status_code == 405, "no stream that a stopping server would wait for"
    assert httpx2.post(path, content=b"{", headers=accepted).status_code == 400
    foreign = httpx2.post(path, json={}, headers=accepted | {"host": "somewhere.example:80"})
    assert foreign.status_code == 421, "a page of another site cannot call what only this machine may"


def test_a_server_for_others_takes_any_host():
    with serving(scripted_tool(languages=["fi", "zh"]), host="0.0.0.0") as url:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"host": "somewhere.example:80", "accept": "application/json, text/event-stream"}
        answer = httpx2.post(f"{url}/mcp", json=request, headers=headers).json()
    [described] = answer["result"]["tools"]
    assert described["name"] == "search"


def test_without_the_sdk(monkeypatch):
    importing = builtins.__import__

    def without(name, *arguments):
        if name.partition(".")[0] == "mcp":
            raise ModuleNotFoundError("No module named 'mcp'", name="mcp")
        return importing(name, *arguments)

    monkeypatch.delitem(sys.modules, "lcrag.commands.serve.mcp_server")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="needs its SDK"):
        serve_over_stdio(ToolService(scripted_tool()))
