"""Remote collections: the same answers as local ones, retries, and errors instead of empty results."""

import contextlib
import json
import logging
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.local_server import served
from support.pretended_collections import PretendedCollections

from lcrag.episodes.host_services import Retries, answer_batch
from lcrag.episodes.requests import RetrievalFailure, Retrieve
from lcrag.errors import UserError
from lcrag.retrieval import Hit, SearchableCollections, build_collection, load_collections
from lcrag.retrieval.remote import LcragService, Patience, RemoteCollections, SearchR1Servers, ServiceRefusal
from lcrag.retrieval.service import ServiceLimits, make_application

QUICK = Patience(first_wait_seconds=0.001, longest_wait_seconds=0.01, attempts=4, connect_seconds=2.0)
NOWHERE = "http://127.0.0.1:9"


@contextlib.contextmanager
def scripted(answers):
    """A server that gives the answers one after the other, the last one for ever: (status, headers, body) each.

    Gives its address and what it is asked: (time, path, JSON).
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, answer = answers[min(len(asked), len(answers) - 1)]
            asked.append((time.monotonic(), self.path, json.loads(body) if body else None))
            if status is None:
                return self.connection.close()
            answer = answer(asked[-1][2]) if callable(answer) else answer
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def search_r1_answer(request):
    """What Search-R1's dense retriever answers: three fields asked for, documents of its corpus with their scores."""
    assert set(request) == {"queries", "topk", "return_scores"}
    assert request["return_scores"] is True
    return {
        "result": [
            [
                {"document": {"id": str(7 + rank), "contents": f'"{query}"\nfound {rank}'}, "score": 0.9 - rank / 10}
                for rank in range(request["topk"])
            ]
            for query in request["queries"]
        ]
    }


def remote(url, **options):
    return RemoteCollections(LcragService(url, patience=QUICK), **options)


def search_r1(urls, patience=QUICK, **options):
    return RemoteCollections(SearchR1Servers(urls, patience, **options))


def test_they_answer_like_collections_here(encoder, passages, tmp_path):
    for language, rows in (("en", passages), ("fi", passages[:3])):
        build_collection(rows, encoder, tmp_path, language=language)
    here = load_collections(tmp_path)
    with served(make_application(here)) as url:
        there = remote(url)
        assert isinstance(there, SearchableCollections)
        assert isinstance(here, SearchableCollections)
        queries, languages = ["Title 4", "Text of number 7919.", "Title 4", "Title 4"], ["en", "fi", "fi", "en"]
        assert there.search(queries, languages, 5) == here.search(queries, languages, 5)
        assert there.search([], [], 1) == []
        assert (there.languages, there.content_hashes()) == (here.languages, here.content_hashes())


def test_nothing_is_asked_twice():
    collections = PretendedCollections()
    with served(make_application(collections)) as url:
        there = remote(url, cached_searches=3)
        there.search(["a", "b", "a", "a"], ["en", "en", "fi", "en"], 2)
        assert there.search(["a", "c"], ["fi", "en"], 2)[0] == collections.hits("a", "fi", 2)
        there.search(["c"], ["en"], 1)
        there.search(["b"], ["en"], 2)  # forgotten: only three searches are remembered
        assert there.search(["c"] * 9, ["en"] * 9, 2) == [collections.hits("c", "en", 2)] * 9
    assert collections.calls == [
        (["a", "b", "a"], ["en", "en", "fi"], 2),
        (["c"], ["en"], 2),
        (["c"], ["en"], 1),
        (["b"], ["en"], 2),
    ]


def test_requests_are_as_large_as_the_service_takes():
    collections = PretendedCollections()
    limits = ServiceLimits(queries=3, passages=4)
    with served(make_application(collections, limits=limits, batch_queries=3, window_seconds=0)) as url:
        there = remote(url)
        queries = [f"q{number}" for number in range(8)]
        assert [hits[0].text for hits in there.search(queries, ["zh"] * 8, 1)] == [f"{q} in zh,\n0" for q in queries]
        assert sorted(len(queries) for queries, *_ in collections.calls) == [2, 3, 3]
        with pytest.raises(UserError, match="a search for 5 passages: ask this service for 1 to 4"):
            there.search(["a"], ["en"], 5)
        with pytest.raises(UserError, match="a search for 0 passages"):
            there.search(["a"], ["en"], 0)
        with pytest.raises(UserError, match="no collection in language 'de': the service has en, fi, zh"):
            there.search(["a"], ["de"], 1)


def test_long_queries_are_cut_to_what_the_service_takes():
    collections = PretendedCollections()
    with served(make_application(collections, limits=ServiceLimits(query_characters=3))) as url:
        [[hit]] = remote(url).search(["日本の通貨"], ["zh"], 1)
    assert hit == collections.hits("日本の", "zh", 1)[0]


def test_some_of_the_languages():
    with served(make_application(PretendedCollections())) as url:
        service = LcragService(f"{url}/retrieve/", ["zh", "en"], QUICK)
        assert RemoteCollections(service).languages == ("en", "zh")
        assert set(service.content_hashes()) == {"encoder", "collection/en", "collection/zh"}
        with pytest.raises(UserError, match="has no collection in 'de': there are en, fi, zh"):
            LcragService(url, ["en", "de"], QUICK)


def test_it_comes_back_to_a_service_that_is_out_for_a_while():
    broken = (200, {"content-encoding": "gzip"}, b"no gzip")
    late = [(429, {}, b""), (None, {}, b""), broken, (200, {}, search_r1_answer)]
    with scripted(late) as (url, asked):
        [[hit]] = search_r1({"en": url}).search(["a"], ["en"], 1)
        assert hit == Hit(id="7", title="a", text="found 0", score=0.9, language="en")
    assert len(asked) == 4


def test_it_waits_as_long_as_it_is_asked_to():
    with scripted([(503, {"retry-after": "1"}, b""), (200, {}, search_r1_answer)]) as (url, asked):
        search_r1({"en": url}, Patience(first_wait_seconds=0.001)).search(["a"], ["en"], 1)
    (first, *_), (second, *_) = asked
    assert second - first >= 0.99


@pytest.mark.parametrize(
    ("status", "body", "error", "parts", "attempts"),
    [
        (503, {"detail": "busy"}, UserError, ("after 4 attempts (status 503: busy)", "start it"), 4),
        (None, b"", UserError, ("after 4 attempts (RemoteProtocolError",), 4),
        (500, b"Internal Server Error", ServiceRefusal, ("failed 3 times: status 500: Internal",), 3),
        (422, {"detail": "topk"}, ServiceRefusal, ("refuses (status 422: topk)",), 1),
        (404, {"detail": "Not Found"}, UserError, ("status 404: Not Found", "check its address"), 1),
        (302, b"", UserError, ("status 302",), 1),
        (200, b"<html>", UserError, ("does not implement the /retrieve API", "Invalid JSON"), 1),
        (200, {"result": []}, UserError, ("it answers 0 queries of 1",), 1),
        (200, {"result": [[{"score": 1.0}]]}, UserError, ("does not implement the /retrieve API",), 1),
        (200, {"result": [[{"document": {"id": "1"}}]]}, UserError, ("neither contents nor text",), 1),
    ],
)
def test_failures_are_clear_and_never_empty(status, body, error, parts, attempts):
    with scripted([(status, {}, body)]) as (url, asked):
        with pytest.raises(error) as caught:
            search_r1({"en": url}).search(["a"], ["en"], 1)
        message = str(caught.value)
        assert url in message, message
        assert all(part in message for part in parts), message
        assert "\n" not in message
        assert len(asked) == attempts


def test_a_service_that_is_not_there():
    with pytest.raises(UserError, match=r"service at http://127.0.0.1:9 does not answer after 3 attempts \(ConnectErr"):
        LcragService(NOWHERE, patience=QUICK)
    with pytest.raises(UserError, match="is not an address: write http://HOST:PORT"):
        LcragService("localhost:8000", patience=QUICK)
    with pytest.raises(UserError, match="search_r1_collections.urls is empty"):
        SearchR1Servers({})


@pytest.mark.parametrize(
    "address",
    [
        "http://ann:hunter2@127.0.0.1:9",
        "http://ann:hun%74er2@127.0.0.1:9",
        "http://ann:x/hunter2@127.0.0.1:9",
        "ann:hunter2@127.0.0.1:9",
        "http://127.0.0.1:9/retrieve?api_key=hunter2",
    ],
)
def test_passwords_and_keys_in_addresses_are_not_shown(address):
    there = search_r1({"en": address})
    with pytest.raises(UserError) as raised:
        there.search(["a"], ["en"], 1)
    for shown in (str(raised.value), *there.content_hashes().values()):
        assert "127.0.0.1:9" in shown
        assert "***" in shown
        assert not re.search("ann|x/|er2", shown)


def test_a_refusal_that_repeats_an_address_does_not_show_its_key(caplog):
    body = {"error": "no results for http://ann:hunter2@search.example/?key=hunter2"}
    with caplog.at_level(logging.INFO), scripted([(422, {}, body)]) as (url, _):
        with pytest.raises(ServiceRefusal) as raised:
            search_r1({"en": url.replace("//", "//ann:hunter2@")}).search(["a"], ["en"], 1)
    assert "no results for http://***@search.example/?key=***" in str(raised.value)
    assert "hunter2" not in str(raised.value) + caplog.text


@pytest.mark.parametrize(
    ("status", "body", "part"),
    [
        (500, b"oops", "failed 3 times: status 500: oops"),
        (422, b"oops", "status 422: oops"),
        (200, {"result": []}, "does not describe its collections .* search_r1_collections"),
    ],
)
def test_a_service_that_cannot_describe_itself(status, body, part):
    with scripted([(status, {}, body)]) as (url, _), pytest.raises(UserError, match=part):
        LcragService(url, patience=QUICK)


def test_collections_that_change_under_a_run():
    collections = PretendedCollections()
    with served(make_application(collections)) as url:
        there = remote(url)
        there.search(["a"], ["en"], 1)
        [service] = [there._backend]
        service._content = "another"
        with pytest.raises(UserError, match="have changed since this command began"):
            there.search(["b"], ["en"], 1)


def test_search_r1s_servers_a_language_each():
    with scripted([(200, {}, search_r1_answer)]) as (english, asked_english):
        with scripted([(200, {}, search_r1_answer)]) as (finnish, asked_finnish):
            there = search_r1({"fi": f"{finnish}/retrieve", "en": english}, queries=2)
            queries, languages = ["a", "b", "c", "d", "a"], ["en", "en", "fi", "en", "fi"]
            found = there.search(queries, languages, 2)
            assert there.languages == ("en", "fi")
            assert there.content_hashes()["collection/fi"] == f"unknown, at {finnish}/retrieve"
    assert [(hits[0].title, hits[1].text, hits[0].language, len(hits)) for hits in found] == [
        (query, "found 1", language, 2) for query, language in zip(queries, languages, strict=True)
    ]
    assert [path for _, path, _ in (*asked_english, *asked_finnish)] == ["/retrieve"] * 3
    assert sorted(request["queries"] for _, _, request in asked_english) == [["a", "b"], ["d"]]
    assert [request["queries"] for _, _, request in asked_finnish] == [["c", "a"]]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"document": {"id": 3, "contents": "T\nx"}, "score": "0.25"}, ("3", "T", "x", 0.25)),
        ({"id": "3", "contents": '"T"\nx'}, ("3", "T", "x", 0.5)),
        ({"document": {"id": "3", "title": "T", "text": "x"}}, ("3", "T", "x", 0.5)),
        ({"document": {"contents": "x"}, "score": 1}, ("1ff6ffa17c5ce95b", "", "x", 1.0)),
    ],
)
def test_the_dialects_of_search_r1s_servers(found, expected):
    first = {"document": {"id": "1", "contents": "T\nfirst"}, "score": 1.0}
    with scripted([(200, {}, {"result": [[first, found, first]]})]) as (url, _):
        [[_, hit]] = search_r1({"en": url}).search(["a"], ["en"], 2)
    identity, title, text, score = expected
    assert (hit.title, hit.text, hit.score) == (title, text, score)
    assert hit.id == identity or not ("id" in found or "id" in found["document"])


def test_episodes_see_failures_where_they_are():
    """What the policy wrote cannot end a run: its search fails alone."""
    collections = PretendedCollections()
    with served(make_application(collections, window_seconds=0)) as url:
        requests = [Retrieve((query,), ("en",), 1) for query in ("a", "break", "b")]
        answers = answer_batch(remote(url).search, requests, Retries(attempts=1))
    assert [[[[hit.text]]] for hit in (answers[0][0][0][0], answers[2][0][0][0])] == [
        [[["a in en,\n0"]]],
        [[["b in en,\n0"]]],
    ]
    assert isinstance(answers[1], RetrievalFailure)
    assert "something broke" in answers[1].reason
