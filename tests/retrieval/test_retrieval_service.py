"""The HTTP service: answers, refusals, and a client of Search-R1."""

import concurrent.futures
import json

import httpx2
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from support.local_server import served, wait_until
from support.pretended_collections import PretendedCollections

from lcrag.errors import UserError
from lcrag.retrieval import Passage, build_collection, load_collections, wire
from lcrag.retrieval.service import ServiceLimits, default_among, is_loopback, listen, make_application
from lcrag.retrieval.wire import digest

LIMITS = ServiceLimits(body_bytes=2000, queries=5, passages=4, waiting_queries=6, search_seconds=0.5)


@pytest.fixture(scope="module")
def collections():
    return PretendedCollections()


@pytest.fixture(scope="module")
def url(collections):
    with served(make_application(collections, limits=LIMITS, window_seconds=0.0)) as url:
        yield url


@pytest.fixture(scope="module")
def client():
    with httpx2.Client(timeout=20.0) as client:
        yield client


def ask(url, **body):
    return httpx2.post(f"{url}/retrieve", json=body)


def search_r1_documents(url, queries, topk):
    """As Search-R1's rollout asks and reads: title on the first line, text below."""
    payload = {"queries": queries, "topk": topk, "return_scores": True}
    results = requests.post(url, json=payload).json()["result"]
    return [[item["document"]["contents"].partition("\n")[::2] for item in found] for found in results]


def test_answers_are_those_of_the_collections(encoder, passages, tmp_path):
    for language, rows in (("en", passages), ("fi", passages[:3])):
        build_collection(rows, encoder, tmp_path, language=language)
    collections = load_collections(tmp_path)
    queries, languages = ["Title 4", "Text of number 7919.", "Title 4"], ["en", "fi", "fi"]
    with served(make_application(collections)) as url:
        answer = ask(url, queries=queries, languages=languages, topk=5, return_scores=True)
    assert answer.status_code == 200
    expected = collections.search(queries, languages, 5)
    assert [len(hits) for hits in expected] == [5, 3, 3]
    assert answer.json()["result"] == [
        [
            {
                "document": {"id": hit.id, "contents": f'"{hit.title}"\n{hit.text}', "language": hit.language},
                "score": hit.score,
            }
            for hit in hits
        ]
        for hits in expected
    ]
    assert wire.hits_of(answer.content, languages, 5) == expected


def test_search_r1s_client_is_served(url, collections):
    [[first, second], other] = search_r1_documents(f"{url}/retrieve", ["who?", "when?"], 2)
    assert first == ('"About "who?""', "who? in en,\n0")
    assert second[1] == "who? in en,\n1"
    assert [text for _, text in other] == ["when? in en,\n0", "when? in en,\n1"]


def test_what_a_request_leaves_out(url, collections):
    result = ask(url, queries=["why?"]).json()["result"]
    assert [document["id"] for document in result[0]] == ["en-0", "en-1", "en-2"], "three bare documents in English"
    assert ask(url, queries=[]).json() == {"result": []}
    assert ask(url, queries=["a"], languages=["zh"]).json()["result"][0][0]["language"] == "zh"


@pytest.mark.parametrize(
    ("languages", "wanted", "expected"),
    [(("fi", "en"), None, "en"), (("fi",), None, "fi"), (("fi", "zh"), "zh", "zh"), (("fi", "zh"), None, None)],
)
def test_the_default_language(languages, wanted, expected):
    assert default_among(languages, wanted) == expected


def test_no_default_language():
    with served(make_application(PretendedCollections(("fi", "zh")))) as url:
        answer = ask(url, queries=["a"])
    assert answer.status_code == 422
    assert "there are fi, zh" in answer.json()["detail"]
    with pytest.raises(UserError, match="default language 'de': choose one of en, fi, zh"):
        make_application(PretendedCollections(), default_language="de")


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"{", 422, "Invalid JSON"),
        (b"[]", 422, "Input should be an object"),
        (b'{"topk": 2}', 422, "queries: Field required"),
        (b'{"queries": "a"}', 422, "queries: Input should be a valid array"),
        (b'{"queries": [1]}', 422, "queries.0: Input should be a valid string"),
        (b'{"queries": ["\\ud800"]}', 422, "Invalid JSON"),
        (b'{"queries": ["a"], "top_k": 2}', 422, "top_k: Extra inputs are not permitted"),
        (b'{"queries": ["a"], "topk": true}', 422, "topk: Input should be a valid integer"),
        (b'{"queries": ["a"], "topk": 0}', 422, "ask for 1 to 4 passages"),
        (b'{"queries": ["a"], "topk": 5}', 422, "ask for 1 to 4 passages"),
        (b'{"queries": ["a"], "languages": []}', 422, "0 languages for 1 queries"),
        (b'{"queries": ["a"], "languages": ["de"]}', 422, "no collection in language 'de': there are en, fi, zh"),
        (b'{"queries": ["a", "b", "c", "d", "e", "f"]}', 413, "ask at most 5"),
        (json.dumps({"queries": ["a" * 2000]}).encode(), 413, "longer than 2000 bytes"),
        (b'{"queries": ["break it"]}', 500, "RuntimeError: something broke"),
    ],
)
def test_refusals_are_one_sentence(url, collections, body, status, part):
    before = len(collections.calls)
    answer = httpx2.post(f"{url}/retrieve", content=body)
    assert answer.status_code == status, answer.text
    assert part in answer.json()["detail"], answer.text
    assert status == 500 or len(collections.calls) == before, "nothing was searched"
    assert "\n" not in answer.json()["detail"]


@given(st.one_of(st.binary(max_size=60), st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(
        st.sampled_from(["queries", "topk", "languages", "return_scores", "x"]), each, max_size=4),
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_no_body_breaks_it(url, client, body):
    assert client.post(f"{url}/retrieve", content=body).status_code in (200, 413, 422)


def test_time_outs_and_overload():
    collections = PretendedCollections()
    collections.gate.clear()
    limits = ServiceLimits(queries=4, waiting_queries=6, search_seconds=1.0)
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
    content = digest(PretendedCollections().content_hashes())
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
    assert httpx2.get(f"{url}/retrieve").status_code == 405
    schema = httpx2.get(f"{url}/openapi.json").json()["paths"]["/retrieve"]["post"]["requestBody"]
    assert set(schema["content"]["application/json"]["schema"]["properties"]) == {
        "queries", "topk", "return_scores", "languages",
    }  # fmt: skip


def test_addresses():
    with listen("127.0.0.1", 0) as taken:
        assert is_loopback(taken)
        with pytest.raises(UserError, match=r"cannot listen on 127.0.0.1:\d+ .*serve.port"):
            listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="cannot listen on 203.0.113.1:8000"):
        listen("203.0.113.1", 8000)
    with listen("0.0.0.0", 0) as everywhere:
        assert not is_loopback(everywhere)


@given(title=st.text().filter(lambda text: "\n" not in text), text=st.text())
def test_contents_are_read_back(title, text):
    assert wire.title_and_text(wire.contents_of(Passage(id="p", title=title, text=text))) == (title, text)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ('"Title"\ntext\nmore', ("Title", "text\nmore")),
        ("Title\ntext", ("Title", "text")),
        ("only text", ("", "only text")),
        ('"\ntext', ('"', "text")),
        ("", ("", "")),
    ],
)
def test_contents_of_others_are_read(contents, expected):
    assert wire.title_and_text(contents) == expected
