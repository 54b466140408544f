"""The HTTP service: answers, refusals, a client of Search-R1, shared searches, and concurrent clients."""

import asyncio
import concurrent.futures
import json

import httpx2
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from support.local_server import served, wait_until
from support.pretended_collections import PretendedCollections

from lcrag.errors import UserError
from lcrag.retrieval import Passage, remote
from lcrag.retrieval.service import Batcher, ServiceLimits, default_among, listen, make_application

LIMITS = ServiceLimits(body_bytes=2000, queries=5, passages=4, waiting_queries=6, search_seconds=0.5)


@pytest.fixture(scope="module")
def url():
    with served(make_application(PretendedCollections(), limits=LIMITS, window_seconds=0.0)) as url:
        yield url


def ask(url, **body):
    return httpx2.post(f"{url}/retrieve", json=body)


def test_search_r1s_client_is_served(url):
    payload = {"queries": ["who?", "when?"], "topk": 2, "return_scores": True}
    answer = requests.post(f"{url}/retrieve", json=payload)
    document = {"id": "en-1", "contents": '"About "who?""\nwho? in en,\n1', "language": "en"}
    assert answer.json()["result"][0][1] == {"document": document, "score": 0.25}
    assert remote.hits_of(answer.content, ["en"] * 2, 2)[1] == PretendedCollections().hits("when?", "en", 2)


def test_what_a_request_leaves_out(url):
    result = ask(url, queries=["why?"]).json()["result"]
    assert [document["id"] for document in result[0]] == ["en-0", "en-1", "en-2"], "three bare documents in English"
    assert ask(url, queries=[]).json() == {"result": []}
    assert ask(url, queries=["a"], languages=["zh"]).json()["result"][0][0]["language"] == "zh"
    for present, wanted, default in (
        (("fi", "en"), None, "en"), (("fi",), None, "fi"), (("fi", "zh"), "zh", "zh"), (("fi", "zh"), None, None),
    ):  # fmt: skip
        assert default_among(present, wanted) == default
    with served(make_application(PretendedCollections(("fi", "zh")))) as no_default:
        answer = ask(no_default, queries=["a"])
    assert (answer.status_code, "there are fi, zh" in answer.json()["detail"]) == (422, True)
    with pytest.raises(UserError, match="default language 'de'"):
        make_application(PretendedCollections(), default_language="de")


def test_the_queries_of_a_training_step_are_one_request():
    """Search-R1's trainer posts its whole batch: 512 questions with 5 samples each."""
    collections = PretendedCollections()
    with served(make_application(collections, window_seconds=0.0)) as url:
        queries = [f"{number} {'long ' * 100}" for number in range(2560)]
        answer = httpx2.post(
            f"{url}/retrieve", json={"queries": queries, "topk": 3, "return_scores": True}, timeout=100
        )
    assert [len(hits) for hits in answer.json()["result"]] == [3] * 2560
    assert max(len(asked) for asked, *_ in collections.calls) <= 512


@given(st.one_of(st.binary(max_size=60), st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(
        st.sampled_from(["queries", "topk", "languages", "return_scores", "x"]), value, max_size=4),
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
@settings(max_examples=25)
def test_no_body_breaks_it(url, body):
    assert httpx2.post(f"{url}/retrieve", content=body).status_code in (200, 413, 422)


def test_time_outs_and_overload():
    collections = PretendedCollections()
    collections.gate.clear()
    limits = ServiceLimits(queries=4, waiting_queries=6, search_seconds=0.5)
    with (
        served(make_application(collections, limits=limits, window_seconds=0.0)) as url,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(ask, url, queries=["searched"])
        wait_until(lambda: collections.calls)
        others = [pool.submit(ask, url, queries=["a", "b", "c", "d"], topk=k) for k in (1, 2)]
        answers = [future.result() for future in (first, *others)]
        assert sorted(answer.status_code for answer in answers) == [503, 504, 504]
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert "come back later" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        collections.gate.set()
        assert ask(url, queries=["again"]).status_code == 200
    assert [queries for queries, *_ in collections.calls] == [["searched"], ["again"]], "nobody waited for the others"


def test_health_and_description(url):
    content = remote.digest(PretendedCollections().content_hashes())
    health = {"status": "ok", "languages": ["en", "fi", "zh"], "unanswered": 0, "content": content}
    assert httpx2.get(f"{url}/healthz").json() == health
    assert httpx2.get(f"{url}/collections").json() == {
        "languages": ["en", "fi", "zh"],
        "default_language": "en",
        "hashes": {"encoder": "1", "collection/en": "1", "collection/fi": "1", "collection/zh": "1"},
        "most_queries": 5,
        "most_query_characters": 8192,
        "most_passages": 4,
    }


def test_addresses():
    with listen("127.0.0.1", 0) as taken, listen("0.0.0.0", 0) as everywhere:
        assert [remote.is_loopback(socket.getsockname()[0]) for socket in (taken, everywhere)] == [True, False]
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("203.0.113.1", 8000)):
            with pytest.raises(UserError, match=f"{host}:{port} .*serve.port"):
                listen(host, port)


@given(title=st.text().filter(lambda text: "\n" not in text), text=st.text())
def test_contents_are_read_back(title, text):
    assert remote.title_and_text(remote.contents_of(Passage(id="p", title=title, text=text))) == (title, text)
    assert remote.title_and_text("Title\ntext") == ("Title", "text")
    assert remote.title_and_text("only text") == ("", "only text")
    assert remote.title_and_text('"\ntext') == ('"', "text")


def batched(collections, *requests, **options):
    """The answers of a batcher to concurrent requests of (queries, languages, k), or their exceptions."""

    async def answers():
        batcher = Batcher(
            lambda pairs, k: collections.search([query for query, _ in pairs], [code for _, code in pairs], k),
            called="queries",
            **{"window_seconds": 0.0, "batch_items": 100, "waiting_items": 100} | options,
        )
        asked = (batcher.ask(list(zip(queries, codes, strict=True)), k) for queries, codes, k in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(answers())


def test_a_batch_is_one_search_for_each_number_of_passages():
    collections = PretendedCollections()
    answers = batched(collections, (["a", "b"], ["en", "fi"], 2), (["c"], ["zh"], 3), (["a"], ["fi"], 2))
    assert collections.calls == [(["a", "b", "a"], ["en", "fi", "fi"], 2), (["c"], ["zh"], 3)]
    hits = collections.hits
    assert answers == [[hits("a", "en", 2), hits("b", "fi", 2)], [hits("c", "zh", 3)], [hits("a", "fi", 2)]]


def test_a_request_that_breaks_the_search_or_is_answered_too_little_fails_alone():
    collections = PretendedCollections()
    first, broken, last = batched(collections, *(([query], ["en"], 1) for query in ("a", "break", "b")))
    assert (first, last) == ([collections.hits("a", "en", 1)], [collections.hits("b", "en", 1)])
    assert isinstance(broken, RuntimeError)
    collections.search = lambda *_: []
    [error] = batched(collections, (["a"], ["en"], 1))
    assert isinstance(error, RuntimeError)


def test_batches_have_a_size_and_a_larger_request_is_searched_in_parts():
    collections = PretendedCollections()
    numbers = [f"{number}" for number in range(10)]
    large, small = batched(collections, (numbers, ["en"] * 10, 1), (["small"], ["fi"], 1), batch_items=4)
    assert large == [collections.hits(number, "en", 1) for number in numbers]
    assert small == [collections.hits("small", "fi", 1)]
    # The small one waits for one part of the large request, not for all.
    assert [queries for queries, *_ in collections.calls] == [numbers[:4], ["small"], numbers[4:8], numbers[8:]]
