"""`lcrag serve --tool` as a process of its own, the Python call of a configuration, and a second model that answers."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import gin
import httpx2
import mcp
import pytest
from experiment_parts import SIZES, assert_mistake, json_lines, run
from mcp.client.stdio import StdioServerParameters
from support.local_server import answered_while_stopping

from lcrag import main
from lcrag.commands.serve.serving import open_search_tool

QUESTION = "Which language is spoken in Niger?"


def tool_bindings(tiny, *bindings):
    parts = (f"policy.folder='{tiny / 'policy'}'", f"load_collections.folder='{tiny / 'collections'}'")
    return [*SIZES, *parts, "search_tool.collections=@load_collections()", "search_tool.warm_up=False", *bindings]


def serve_words(tiny, *bindings, switches=("--tool",)):
    bindings = tool_bindings(tiny, "serve.port=0", "serve.warm_up_queries=(1,)", *bindings)
    words = ("serve", *switches, "--allow_unused", "--gin_file=quickstart.gin")
    return [*words, *(f"--gin.{binding}" for binding in bindings)]


def process(words):
    """A process on the one device that a laptop has, and not on the first of the eight that tests pretend."""
    words = [word for word in words if "one_device" not in word]
    return {"args": ["-m", "lcrag.main", *words], "env": {**os.environ, "XLA_FLAGS": ""}}


def ask(address, **body):
    return httpx2.post(f"{address}/search_tool", json=body, timeout=120)


def calls(server, *arguments):
    """The results of calls of the tool by the official client."""

    async def agent():
        async with mcp.Client(server) as client:
            return [await client.call_tool("search", each) for each in arguments]

    return asyncio.run(agent())


def test_it_is_served_to_all_and_finishes_what_it_has(tiny):
    started = process(serve_words(tiny, "serve.limits=@ServiceLimits()", "ServiceLimits.arrival_seconds=60.0"))
    words = [sys.executable, *started["args"]]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=started["env"]
    ) as server:
        try:
            lines = [server.stdout.readline() for _ in range(3)]
            address = re.search(r"serving ar, .* at (http://127.0.0.1:\d+)/retrieve", lines[0])[1]
            found = ask(address, question=QUESTION, language="fi")
            [called] = calls(f"{address}/mcp", {"question": QUESTION, "language": "fi"})
            refused = ask(address, question=QUESTION, language="tlh")
            status, last = answered_while_stopping(server.terminate, address, "/search_tool", {"question": QUESTION})
            rest, errors = server.communicate(timeout=120)
        finally:
            server.kill()
    assert [line.strip() for line in lines[1:]] == [
        f"search as a tool at {address}/search_tool",
        f"the same for agents, by MCP, at {address}/mcp",
    ]
    assert found.status_code == status == 200
    assert found.json()["language"] == "fi"
    assert last["language"] == "en"
    assert called.structured_content == found.json()
    assert refused.status_code == 422
    assert "'tlh'" in refused.json()["detail"]
    assert (server.returncode, errors, rest) == (0, "", "stopped; the requests in flight were finished\n")


def test_an_agent_starts_it_itself(tiny):
    server = StdioServerParameters(command=sys.executable, **process(serve_words(tiny, switches=("--tool", "--stdio"))))
    answered, refused = calls(server, {"question": QUESTION}, {"question": ""})
    assert not answered.is_error
    assert answered.structured_content["question"] == QUESTION
    assert refused.is_error
    assert "the question is empty: ask something" in refused.content[0].text


def test_sigterm_ends_it_while_its_stdin_is_open(tiny):
    started = process(serve_words(tiny, switches=("--tool", "--stdio")))
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *started["args"]], **pipes, text=True, env=started["env"]) as server:
        try:
            assert server.stderr.readline() == "serving one agent over stdin and stdout by MCP\n"
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=60) == -signal.SIGTERM
        finally:
            server.kill()


def test_the_python_call(tiny):
    tool = open_search_tool("quickstart.gin", bindings=tool_bindings(tiny))
    asked = [QUESTION, "Mitä kieltä puhutaan Nigerissä?"]
    together = tool(asked, ["en", "fi"])
    assert [found.language for found in together] == ["en", "fi"]
    for found in together:
        assert all(hit.id.startswith(f"{hit.language}/") for hit in found.passages)
        assert bool(found.passages) == bool(found.searches)


@pytest.mark.parametrize(
    ("switches", "bindings", "part"),
    [
        ((), (), "serve.collections"),
        (("--stdio",), (), "--tool"),
        (
            ("--tool",),
            ("serve.tool_limits=@ToolLimits()", "ToolLimits.answer_seconds=0.0"),
            "ToolLimits.answer_seconds",
        ),
        (("--tool",), ("Sampler.context=17",), "the context holds 17"),
        (("--tool",), ("serve.default_language='xx'",), "'xx'"),
    ],
)
def test_mistakes_are_one_line(tiny, capsys, switches, bindings, part):
    gin.clear_config()
    assert main.run(serve_words(tiny, *bindings, switches=switches)) == 2
    assert_mistake(capsys, part)


@pytest.mark.parametrize("searcher", ["@hierarchical_search", "None"])
def test_a_second_model_answers(tiny, tmp_path, searcher):
    bindings = (
        f"answer_from_evidence.searcher={searcher}",
        f"local_model.folder='{tiny / 'policy'}'",
        "local_model.mesh=@one_device()",
        "local_model.slots=6",
        "local_model.context=160",
        "local_model.append_rows=(6,)",
        "Evaluation.temperatures={'sampled': 1.0}",
    )
    files = ("r_search/answer_from_evidence.gin",)
    assert run("evaluate", tiny, *bindings, gin_files=files, output=tmp_path) == 0
    [answers] = (tmp_path / "answers").glob("*_sampled.jsonl")
    rows = json_lines(answers)
    assert len(rows) == 13
    assert any(row["answer"] for row in rows)
    assert (sum(row["searches"] for row in rows) > 0) == (searcher != "None")
    assert {row["method"] for row in json.loads((tmp_path / "evaluation.json").read_text())["rows"]} == {
        "Answer from evidence, sampled"
    }
