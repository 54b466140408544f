"""`lcrag serve`, and experiments that search behind a service."""

import concurrent.futures
import json
import os
import re
import signal

import gin
import pytest
from experiment_parts import TIMINGS, assert_mistake, json_lines, measured, run, written_episodes
from joined_processes import free_port
from support.local_server import answered_while_stopping, refuses, served, wait_until

from lcrag import main
from lcrag.retrieval import load_collections
from lcrag.retrieval.service import make_application


@pytest.fixture(scope="module")
def collections(tiny):
    return load_collections(tiny / "collections")


@pytest.fixture(scope="module")
def service(collections):
    with served(make_application(collections)) as url:
        yield url


def remotely(url):
    parts = ("train", "evaluate", "sample")
    return [*(f"{part}.collections=@remote_collections()" for part in parts), f"remote_collections.url='{url}'"]


def test_training_behind_our_service_is_the_same_training(tiny, service, tmp_path):
    bindings = ("STEPS=2", "train.evaluation=None", "train.episodes_every=1")
    here, there = tmp_path / "here", tmp_path / "there"
    assert run("train", tiny, *bindings, output=here) == 0
    assert run("train", tiny, *bindings, *remotely(service), output=there) == 0
    timings = (*TIMINGS, "slots/")  # a slot idles while its search is on the way
    assert measured(here, timings) == measured(there, timings)
    for step in range(2):
        assert written_episodes(here, f"step_{step}") == written_episodes(there, f"step_{step}")
    hashes = [json.loads((each / "run.json").read_text())["hashes"] for each in (here, there)]
    assert hashes[0] == hashes[1]
    assert {"policy", "questions", "collection/en"} <= hashes[0].keys()


def test_a_run_goes_on_when_the_service_has_moved(tiny, collections, tmp_path):
    bindings = ("train.evaluation=None", "train.checkpoint_every=1", "train.steps=1")
    with served(make_application(collections)) as url:
        assert run("train", tiny, *bindings, *remotely(url), output=tmp_path / "run") == 0
    with served(make_application(collections)) as url:
        assert run("train", tiny, *bindings, "train.steps=2", *remotely(url), output=tmp_path / "run") == 0
    assert [row["step"] for row in json_lines(tmp_path / "run" / "metrics.jsonl")] == [0, 1]


def test_searching_search_r1_style(tiny, service, capsys):
    """Our own service takes requests without languages too, in its default language."""
    bindings = ("sample.collections=@search_r1_collections()", f"search_r1_collections.urls={{'en': '{service}'}}")
    status = run("sample", tiny, *bindings, "hierarchical_search.route=@native_only", words=["Which?"])
    assert status == 0
    assert "answer:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bindings", "part"),
    [
        (("sample.collections=@remote_collections()", "remote_collections.url='http://127.0.0.1:9'"), "127.0.0.1:9"),
        (("sample.collections=@web_collections()", "web_collections.engine=@serp_api()"), "NOT_SET_ANYWHERE"),
    ],
)
def test_mistakes_of_a_client_are_one_line(tiny, capsys, bindings, part):
    patience = ("remote_collections.patience=@Patience()", "Patience.first_wait_seconds=0.01")
    web = ("web_collections.languages=('en',)", "serp_api.key_variable='NOT_SET_ANYWHERE'")
    assert run("sample", tiny, *bindings, *patience, *web, words=["Which?"]) == 2
    assert_mistake(capsys, part)


def serve_words(tiny, *bindings):
    parts = (f"load_collections.folder='{tiny / 'collections'}'", *bindings)
    return ["serve", *(f"--gin.{binding}" for binding in parts)]


def test_ctrl_c_ends_a_server_that_finishes_what_it_has(tiny, capsys):
    """SIGTERM ends one in a process of its own in `test_serve_tool`."""
    address, body = f"http://127.0.0.1:{(port := free_port())}", {"queries": ["a", "b"], "languages": ["fi", "zh"]}

    def ask():
        wait_until(lambda: not refuses("127.0.0.1", port), "the server")
        return answered_while_stopping(
            lambda: os.kill(os.getpid(), signal.SIGINT), address, "/retrieve", body | {"topk": 2, "return_scores": True}
        )

    gin.clear_config()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        bindings = (
            f"serve.port={port}",
            "serve.warm_up_queries=(1,)",
            "serve.limits=@ServiceLimits()",
            "ServiceLimits.arrival_seconds=60.0",
        )
        assert main.run(serve_words(tiny, *bindings)) == 0
        status, answer = asked.result(timeout=60)
    assert status == 200
    assert [[hit["document"]["language"] for hit in hits] for hits in answer["result"]] == [["fi"] * 2, ["zh"] * 2]
    written = capsys.readouterr()
    assert re.search(rf"serving ar, .* at {address}/retrieve", written.out)
    assert written.out.endswith("\nstopped; the requests in flight were finished\n")
    assert written.err == ""
    assert refuses("127.0.0.1", port)
