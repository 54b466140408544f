"""`lcrag serve`: starting it, experiments that search through it, and R-Search as a tool over HTTP, MCP and Python."""

import asyncio
import concurrent.futures
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
from experiment_parts import SIZES, TIMINGS, json_lines, measured, run, written_episodes
from joined_processes import free_port
from support.local_server import answered_while_stopping, refuses, served, wait_until

from lcrag import main
from lcrag.commands.serve import open_search_tool
from lcrag.retrieval import load_collections
from lcrag.retrieval.service import make_application

QUESTION = "Which language is spoken in Niger?"


@pytest.fixture(scope="module")
def collections(tiny):
    return load_collections(tiny / "collections")


def test_training_behind_our_service_is_the_same_and_goes_on_when_it_has_moved(tiny, collections, tmp_path):
    bindings = ("train.evaluation=None", "train.episodes_every=1", "train.checkpoint_every=1")
    here, there = tmp_path / "here", tmp_path / "there"
    for steps in (1, 2):
        with served(make_application(collections)) as url:
            remote = ("train.collections=@remote_collections()", f"remote_collections.url='{url}'")
            assert run("train", tiny, *bindings, *remote, f"train.steps={steps}", output=there) == 0
    assert run("train", tiny, *bindings, "train.steps=2", output=here) == 0
    timings = (*TIMINGS, "slots/")  # a slot idles while its search is on the way
    assert measured(here, timings) == measured(there, timings)
    assert [row["step"] for row in json_lines(there / "metrics.jsonl")] == [0, 1]
    assert written_episodes(here, "step_1") == written_episodes(there, "step_1")
    hashes = [json.loads((each / "run.json").read_text())["hashes"] for each in (here, there)]
    assert hashes[0] == hashes[1]
    assert {"policy", "questions", "collection/en"} <= hashes[0].keys()


def test_searching_search_r1_style(tiny, collections, capsys):
    with served(make_application(collections)) as url:
        bindings = ("sample.collections=@search_r1_collections()", f"search_r1_collections.urls={{'en': '{url}'}}")
        assert run("sample", tiny, *bindings, "hierarchical_search.route=@native_only", words=["Which?"]) == 0
    assert "answer:" in capsys.readouterr().out


def tool_bindings(tiny, *bindings):
    parts = (f"policy.folder='{tiny / 'policy'}'", f"load_collections.folder='{tiny / 'collections'}'")
    return [*SIZES, *parts, "search_tool.collections=@load_collections()", "search_tool.warm_up=False", *bindings]


def serve_words(tiny, *bindings, switches=("--tool",)):
    limits = ("serve.limits=@ServiceLimits()", "ServiceLimits.arrival_seconds=60.0")
    bindings = tool_bindings(tiny, "serve.port=0", "serve.warm_up_queries=(1,)", *limits, *bindings)
    words = ("serve", *switches, "--allow_unused", "--gin_file=quickstart.gin")
    return [*words, *(f"--gin.{binding}" for binding in bindings)]


def test_ctrl_c_ends_a_server_that_finishes_what_it_has(tiny, capsys):
    address, body = f"http://127.0.0.1:{(port := free_port())}", {"queries": ["a", "b"], "languages": ["fi", "zh"]}

    def ask():
        wait_until(lambda: not refuses("127.0.0.1", port), "the server")
        return answered_while_stopping(
            lambda: os.kill(os.getpid(), signal.SIGINT), address, "/retrieve", body | {"topk": 2, "return_scores": True}
        )

    gin.clear_config()
    collections = "serve.collections=@load_collections()"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        assert main.run(serve_words(tiny, collections, f"serve.port={port}", switches=())) == 0
        status, answer = asked.result(timeout=60)
    assert status == 200
    assert [[hit["document"]["language"] for hit in hits] for hits in answer["result"]] == [["fi"] * 2, ["zh"] * 2]
    written = capsys.readouterr()
    assert re.search(rf"serving ar, .* at {address}/retrieve", written.out)
    assert written.out.endswith("\nstopped; the requests in flight were finished\n")
    assert written.err == ""
    assert refuses("127.0.0.1", port)


def process(words):
    """A process on the one device that a laptop has, and not on the first of the eight that tests pretend."""
    words = [word for word in words if "one_device" not in word]
    return {"args": ["-m", "lcrag.main", *words], "env": {**os.environ, "XLA_FLAGS": ""}}


def test_the_tool_is_served_to_all_and_finishes_what_it_has(tiny):
    def ask(**body):
        return httpx2.post(f"{address}/search_tool", json=body, timeout=120)

    async def called_by_an_agent():
        async with mcp.Client(f"{address}/mcp") as client:
            return await client.call_tool("search", {"question": QUESTION, "language": "fi"})

    started, pipes = process(serve_words(tiny)), dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *started["args"]], **pipes, text=True, env=started["env"]) as server:
        try:
            lines = [server.stdout.readline() for _ in range(3)]
            address = re.search(r"serving ar, .* at (http://127.0.0.1:\d+)/retrieve", lines[0])[1]
            found = ask(question=QUESTION, language="fi")
            called = asyncio.run(called_by_an_agent())
            refused = ask(question=QUESTION, language="tlh")
            status, last = answered_while_stopping(server.terminate, address, "/search_tool", {"question": QUESTION})
            rest, errors = server.communicate(timeout=120)
        finally:
            server.kill()
    assert [line.rpartition(" ")[2].strip() for line in lines[1:]] == [f"{address}/search_tool", f"{address}/mcp"]
    assert found.status_code == status == 200
    assert (found.json()["language"], last["language"]) == ("fi", "en")
    assert called.structured_content == found.json()
    assert (refused.status_code, "'tlh'" in refused.json()["detail"]) == (422, True)
    assert (server.returncode, rest) == (0, "stopped; the requests in flight were finished\n")
    assert all(re.match(r"lcrag: [a-z]+ing\b", line) for line in errors.splitlines()), errors  # what takes its time


def test_an_agent_starts_it_itself_and_sigterm_ends_it_while_its_stdin_is_open(tiny):
    def ask(method, **parameters):
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())["result"]

    started = process(serve_words(tiny, switches=("--tool", "--stdio")))
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *started["args"]], **pipes, text=True, env=started["env"]) as server:
        try:
            while "MCP" not in (line := server.stderr.readline()):
                assert line.startswith("lcrag: ")  # what takes its time
            about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            ask("initialize", **about)
            server.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
            answered, refused = (
                ask("tools/call", name="search", arguments={"question": question}) for question in (QUESTION, "")
            )
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=60) == -signal.SIGTERM
        finally:
            server.kill()
    assert answered["structuredContent"]["question"] == QUESTION
    assert refused["isError"]
    assert "is empty" in refused["content"][0]["text"]


def test_the_python_call(tiny):
    tool = open_search_tool("quickstart.gin", bindings=tool_bindings(tiny))
    together = tool([QUESTION, "Mitä kieltä puhutaan Nigerissä?"], ["en", "fi"])
    assert [found.language for found in together] == ["en", "fi"]
    for found in together:
        assert all(hit.id.startswith(f"{hit.language}/") for hit in found.passages)
        assert bool(found.passages) == bool(found.searches)
