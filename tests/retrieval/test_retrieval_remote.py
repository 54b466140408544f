"""Remote collections and web search: the same answers as local ones, retries, and errors instead of empty results."""

import concurrent.futures
import contextlib
import datetime
import email.utils
import logging
import re
import threading
import urllib.parse

import pytest
from support import tiny_tokenizer
from support.local_server import refuses, scripted, served, wait_until
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Observe, Outcome, Runner
from lcrag.episodes.programs import Retrieve
from lcrag.errors import UserError
from lcrag.models.completers import ChatEndpoint, user_message
from lcrag.models.translators import RemoteTranslator
from lcrag.retries import Patience, ServiceRefusal, ServiceUnavailable
from lcrag.retrieval import Hit, SearchableCollections, build_collection, load_collections, remote
from lcrag.retrieval.qdrant import Qdrant
from lcrag.retrieval.remote import (
    LcragService,
    RemoteCollections,
    SearchR1Servers,
)
from lcrag.retrieval.service import ServiceLimits, make_application
from lcrag.retrieval.web import GoogleCustomSearch, SerpApi, WebSearch

QUICK = Patience(first_wait_seconds=0.001, longest_wait_seconds=0.01, attempts=4, connect_seconds=2.0)
NOWHERE = "http://127.0.0.1:9"


def search_r1_answer(request):
    """What Search-R1's dense retriever answers: three fields asked for, documents of its corpus with their scores."""
    assert set(request) == {"queries", "topk", "return_scores"}
    assert request["return_scores"] is True

    def found(query, rank):
        return {"document": {"id": str(7 + rank), "contents": f'"{query}"\nfound {rank}'}, "score": 0.9 - rank / 10}

    return {"result": [[found(query, rank) for rank in range(request["topk"])] for query in request["queries"]]}


def lcrag_service(url, **options):
    return RemoteCollections(LcragService(url, patience=QUICK), **options)


def search_r1(url, patience=QUICK):
    return RemoteCollections(SearchR1Servers({"en": url}, patience))


def test_they_answer_like_collections_here(encoder, passages, tmp_path):
    for language, rows in (("en", passages), ("fi", passages[:3])):
        build_collection(rows, encoder, tmp_path, language=language)
    here = load_collections(tmp_path)
    with served(make_application(here)) as url:
        there = lcrag_service(url)
        assert isinstance(there, SearchableCollections)
        assert isinstance(here, SearchableCollections)
        queries, languages = ["Title 4", "Text of number 7919.", "Title 4", "Title 4"], ["en", "fi", "fi", "en"]
        assert there.search(queries, languages, 5) == here.search(queries, languages, 5)
        assert there.search([], [], 1) == []
        assert (there.languages, there.content_hashes()) == (here.languages, here.content_hashes())


def test_nothing_is_asked_twice():
    collections = PretendedCollections()
    with served(make_application(collections)) as url:
        there = lcrag_service(url, cached_searches=3)
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


def test_requests_are_what_the_service_takes():
    collections, limits = PretendedCollections(), ServiceLimits(queries=3, passages=4, query_characters=3)
    with served(make_application(collections, limits=limits, batch_queries=3, window_seconds=0)) as url:
        there = lcrag_service(url)
        queries = [f"q{number}" for number in range(8)]
        assert [hits[0].text for hits in there.search(queries, ["zh"] * 8, 1)] == [f"{q} in zh,\n0" for q in queries]
        assert sorted(len(queries) for queries, *_ in collections.calls) == [2, 3, 3]
        assert there.search(["日本の通貨"], ["zh"], 1) == [collections.hits("日本の", "zh", 1)]
        for k, language, named in ((5, "en", "1 to 4"), (0, "en", "for 0 passages"), (1, "de", "'de'")):
            with pytest.raises(UserError, match=named):
                there.search(["a"], [language], k)
        some = LcragService(f"{url}/retrieve/", ["zh", "en"], QUICK)
        assert RemoteCollections(some).languages == ("en", "zh")
        assert set(some.content_hashes()) == {"encoder", "collection/en", "collection/zh"}
        with pytest.raises(UserError, match="'de'"):
            LcragService(url, ["en", "de"], QUICK)
        there._backend._content = "another"
        with pytest.raises(UserError, match="have changed since"):
            there.search(["b"], ["en"], 1)


def test_it_comes_back_to_a_service_that_is_out_for_a_while():
    broken, busy = (200, {"content-encoding": "gzip"}, b"no gzip"), (503, {"retry-after": "1"}, b"")
    with scripted((429, {}, b""), (None, {}, b""), broken, busy, (200, {}, search_r1_answer)) as (url, asked):
        [[hit]] = search_r1(url, Patience(first_wait_seconds=0.001)).search(["a"], ["en"], 1)
        assert hit == Hit(id="7", title="a", text="found 0", score=0.9, language="en")
    assert len(asked) == 5
    assert asked[4][0] - asked[3][0] >= 0.99


SCORED = b'{"result": [[{"document": {"contents": "a"}, "score": %s}]]}'
TOMORROW = email.utils.format_datetime(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1))


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "part", "attempts"),
    [
        (503, {}, {"detail": "busy"}, UserError, "after 4 attempts (status 503: busy)", 4),
        # A wait that no patience outlasts is not begun.
        (503, {"retry-after": "3600"}, b"", ServiceUnavailable, "in 3,600 seconds", 1),
        (429, {"retry-after": TOMORROW}, {"detail": "quota"}, ServiceUnavailable, "in 8", 1),
        (429, {"retry-after": "soon"}, {"detail": "quota"}, ServiceUnavailable, "status 429: quota): it is busy", 4),
        (None, {}, b"", UserError, "after 4 attempts (RemoteProtocolError", 4),
        (500, {}, b"Internal Server Error", ServiceRefusal, "failed 3 times: status 500: Internal", 3),
        (422, {}, {"detail": "topk"}, ServiceRefusal, "refuses (status 422: topk)", 1),
        (404, {}, {"detail": "Not Found"}, UserError, "check its address", 1),
        (302, {}, b"", UserError, "status 302", 1),
        (200, {}, b"<html>", UserError, "Invalid JSON", 1),
        (200, {}, {"result": []}, UserError, "it answers 0 queries of 1", 1),
        (200, {}, {"result": [[{"score": 1.0}]]}, UserError, "does not implement the /retrieve API", 1),
        (200, {}, {"result": [[{"document": {"id": "1"}}]]}, UserError, "neither contents nor text", 1),
        *(
            (200, {}, SCORED % score, ServiceRefusal, "score", 1)
            for score in (b"NaN", b"-Infinity", b"1e999", b'"inf"')
        ),
    ],
)
def test_failures_are_clear_and_never_empty(status, headers, body, error, part, attempts):
    with scripted((status, headers, body)) as (url, asked):
        with pytest.raises(error) as caught:
            search_r1(url).search(["a"], ["en"], 1)
        message = str(caught.value)
        assert url in message, message
        assert part in message, message
        assert ("address" in message) <= (error is not ServiceUnavailable)
        assert "\n" not in message
        assert len(asked) == attempts


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ((500, {}, b"oops"), "failed 3 times"),
        ((422, {}, b"oops"), "status 422"),
        ((200, {}, {"result": []}), "search_r1_collections"),
        (NOWHERE, "after 3 attempts"),
        ("localhost:8000", "is not an address"),
    ],
)
def test_services_that_are_not_there_or_cannot_describe_themselves(answer, part):
    with scripted(answer) as (url, _), pytest.raises(UserError, match=part):
        LcragService(answer if isinstance(answer, str) else url, patience=QUICK)


@pytest.mark.parametrize("url", ["localhost:8000", "http://[::1:8000"])
def test_what_is_no_address_of_search_r1s_server_is_said(url):
    with pytest.raises(UserError, match="is not an address"):
        search_r1(url).search(["a"], ["en"], 1)


CLIENTS = {
    "retrieval": lambda url: LcragService(url, patience=QUICK),
    "Search-R1": lambda url: search_r1(url).search(["a"], ["en"], 1),
    "translator": lambda url: RemoteTranslator(url, QUICK),
    "endpoint": lambda url: ChatEndpoint("model", url, attempts=1).say(user_message("a")),
    "web": lambda url: WebSearch(SerpApi(url=url), ["en"], QUICK).fetch([("a", "en")], 1),
    "Qdrant": lambda url: Qdrant(url, patience=QUICK).described(),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_proxy_of_the_environment_is_for_other_machines_and_named(client, monkeypatch):
    if client == "Qdrant":
        pytest.importorskip("qdrant_client")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SERPAPI_API_KEY", "key")
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    with scripted((400, {}, b"no")) as (url, asked):
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            with pytest.raises((UserError, ServiceRefusal)):
                CLIENTS[client](url.replace("127.0.0.1", host))
        assert len(asked) == 3
    monkeypatch.setenv("all_proxy", "unknown://127.0.0.1:9")
    with pytest.raises(UserError, match="proxy .*all_proxy"):
        CLIENTS[client]("https://203.0.113.1/v1")
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    monkeypatch.delenv("all_proxy")
    with pytest.raises(UserError, match="203.0.113.1:8000.*proxy .*HTTP_PROXY"):
        CLIENTS[client]("http://203.0.113.1:8000")


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "Qdrant"])  # whose other texts are folders
def test_passwords_and_keys_in_addresses_are_not_shown(client, caplog):
    caplog.set_level(logging.INFO)
    refused = (422, {}, {"error": "no results for http://ann:hunter2@search.example/?key=hunter2"})
    with scripted(refused) as (url, _):
        there = url.removeprefix("http://")
        for address in (
            f"http://ann:hun%74er2@{there}",
            f"ann:x/hunter2@{there}",
            f"{NOWHERE}/retrieve?api_key=hunter2",
        ):
            with pytest.raises((UserError, ServiceRefusal)) as raised:
                CLIENTS[client](address)
            assert "127.0.0.1" in str(raised.value)
            assert not re.search(r"\bann\b|x/|er2", f"{raised.value} {caplog.text}")
            assert not re.search(r"\bann\b|x/|er2", str(search_r1(address).content_hashes()))


def test_search_r1s_servers_a_language_each(monkeypatch):
    monkeypatch.setattr(SearchR1Servers, "max_queries", 2)
    answer = (200, {}, search_r1_answer)
    with scripted(answer) as (english, asked_english), scripted(answer) as (finnish, asked_finnish):
        there = RemoteCollections(SearchR1Servers({"fi": f"{finnish}/retrieve", "en": english}, QUICK))
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
        ({"document": {"id": "3", "title": None, "text": "x"}, "score": None}, ("3", "", "x", 0.5)),
        ({"document": {"contents": "x"}, "score": 1}, (None, "", "x", 1.0)),
        ({"document": {"id": "3", "title": "T", "contents": "x"}}, ("3", "T", "x", 0.5)),
        ({"document": {"id": "3", "title": "T", "contents": "x\ny"}}, ("3", "T", "x\ny", 0.5)),
        ({"document": {"id": "3", "title": "T", "contents": '"T"\ny'}}, ("3", "T", "y", 0.5)),
    ],
)
def test_the_dialects_of_search_r1s_servers(found, expected):
    first = {"document": {"id": "1", "contents": "T\nfirst"}, "score": 1.0}
    with scripted((200, {}, {"result": [[first, found, first]]})) as (url, _):
        [[_, hit]] = search_r1(url).search(["a"], ["en"], 2)
    assert (hit.title, hit.text, hit.score) == expected[1:]
    assert hit.id == (expected[0] or hit.id)


def search_twice(question):
    yield Observe(f"{question.text}\n")
    [[[first]]] = yield Retrieve((question.text,), ("en",), 1)
    [[[second]]] = yield Retrieve((first.title,), ("fi",), 1)
    return Outcome(answer=second.text)


def run(search):
    tokenizer = tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, script=lambda context, generation: "", slots=8)
    questions = [Question(id=f"{n}", dataset="d", language="en", text=f"Who {n}?", answers=()) for n in range(8)]
    runner = Runner(sampler=sampler, tokenizer=tokenizer, search=search)
    return [record.outcome for record in runner.run([(question, search_twice(question), 0) for question in questions])]


def test_a_restart_costs_retries_and_no_episode(monkeypatch):
    failed, collections = threading.Event(), PretendedCollections()

    class Observed(remote.TemporaryFailure):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            failed.set()

    monkeypatch.setattr(remote, "TemporaryFailure", Observed)
    patience = Patience(attempts=10_000, first_wait_seconds=0.001, longest_wait_seconds=0.01)
    collections.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with contextlib.ExitStack() as service:
            url = service.enter_context(served(make_application(collections)))
            outcomes = pool.submit(run, RemoteCollections(LcragService(url, patience=patience)).search)
            wait_until(lambda: collections.calls)
            stopping = pool.submit(service.close)
            port = urllib.parse.urlsplit(url).port
            wait_until(lambda: refuses("127.0.0.1", port))
            collections.gate.set()
            stopping.result()
        assert failed.wait(20.0)
        with served(make_application(PretendedCollections()), port=port):
            found = outcomes.result(timeout=20.0)
    assert found == run(PretendedCollections().search)
    assert found[0].answer == 'About "Who 0?" in fi,\n0'


# --- Web search, against local stand-ins of the engines ---

WRONG_KEY = {"message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}  # as Google says it
KEY = "a-key-nobody-may-see"
SERPAPI_PAGES = {
    "capital of Chad": {
        "answer_box": {"title": "Chad / Capital", "answer": "N'Djamena", "link": "https://a"},
        "organic_results": [
            {"position": 1, "title": "N'Djamena", "link": "https://b", "snippet": "The capital\u00a0of\nChad."},
            {"position": 2, "title": "No snippet", "link": "https://c"},
        ],
    },
    "zzzz": {"error": "Google hasn't returned any results for this query."},
    "wrong": {"error": "Unsupported `lr`."},
}
GOOGLE_PAGES = {
    "capital of Chad": {
        "items": [
            {"title": "N'Djamena", "link": "https://b", "snippet": "The capital of Chad."},
            {"link": "https://c", "title": None, "snippet": None},
        ]
    },
    "zzzz": {"searchInformation": {"totalResults": "0"}},
}


def engine(pages, key_name):
    def answer(request):
        return (200, {}, pages[request["q"]]) if request[key_name] == KEY else (401, {}, {"detail": "Invalid API key."})

    return answer


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name, value in {"SERPAPI_API_KEY": f" {KEY} ", "GOOGLE_API_KEY": KEY, "GOOGLE_CSE_ID": "an-engine"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WRONG_KEY", "another-key")


@pytest.fixture
def serpapi():
    with scripted(engine(SERPAPI_PAGES, "api_key")) as (url, asked):
        yield SerpApi(url=f"{url}/search"), asked


@pytest.fixture
def google():
    with scripted(engine(GOOGLE_PAGES, "key")) as (url, asked):
        yield GoogleCustomSearch(url=f"{url}/search"), asked


def web(engine):
    return RemoteCollections(WebSearch(engine, ("en", "zh"), QUICK))


def test_serpapi(serpapi):
    there, asked = web(serpapi[0]), serpapi[1]
    found, chinese, nothing = there.search(["capital of Chad", "capital of Chad", "zzzz"], ["en", "zh", "en"], 2)
    assert found == [
        Hit(id="https://a", title="Chad / Capital", text="N'Djamena", score=1.0, language="en"),
        Hit(id="https://b", title="N'Djamena", text="The capital of Chad.", score=0.5, language="en"),
    ]
    assert [hit.language for hit in chinese] == ["zh", "zh"]
    assert nothing == []
    there.search(["capital of Chad"], ["en"], 2)
    assert len(asked) == 3, "a search that costs money is not repeated"
    english, mandarin = sorted((body for *_, body in asked if body["q"] != "zzzz"), key=lambda body: body["hl"])
    expected = {"engine": "google", "q": "capital of Chad", "num": "2", "api_key": KEY}
    assert english == expected | {"hl": "en", "lr": "lang_en"}
    assert mandarin == expected | {"hl": "zh-cn", "lr": "lang_zh-CN"}


def test_google(google):
    [hits, nothing] = web(google[0]).search(["capital of Chad", "zzzz"], ["zh", "en"], 3)
    assert hits == [
        Hit(id="https://b", title="N'Djamena", text="The capital of Chad.", score=1.0, language="zh"),
        Hit(id="https://c", title="", text="", score=0.5, language="zh"),
    ]
    assert nothing == []
    assert next(body for *_, body in google[1] if body["hl"] == "zh-CN") == {
        "key": KEY, "cx": "an-engine", "q": "capital of Chad", "num": "3", "hl": "zh-CN", "lr": "lang_zh-CN",
    }  # fmt: skip


def test_refused_searches(serpapi):
    for query, k, language, error, named in (
        ("wrong", 1, "en", ServiceRefusal, "Unsupported `lr`"),
        (" ", 1, "en", ServiceRefusal, "empty queries"),
        ("capital of Chad", 11, "en", UserError, "1 to 10"),
        ("capital of Chad", 1, "fi", UserError, "'fi'"),
    ):
        with pytest.raises(error, match=named):
            web(serpapi[0]).search([query], [language], k)


def test_the_key_is_never_shown(serpapi, google, caplog):
    caplog.set_level(logging.DEBUG)
    web(serpapi[0]).search(["capital of Chad"], ["en"], 1)
    wrong = SerpApi("WRONG_KEY", url=serpapi[0].url)
    with pytest.raises(UserError, match="check its address and key") as caught:
        web(wrong).search(["capital of Chad"], ["en"], 1)
    away = GoogleCustomSearch(url="http://127.0.0.1:9/search")
    with pytest.raises(UserError, match="does not answer after 4 attempts") as unanswered:
        web(away).search(["capital of Chad"], ["en"], 1)
    shown = f"{caught.value} {unanswered.value} {web(google[0]).content_hashes()}"
    assert KEY not in shown
    assert "another-key" not in shown
    assert not [record for record in caplog.records if record.name.startswith("http") and KEY in record.getMessage()]
    with pytest.raises(UserError, match="NO_KEY is not set"):
        SerpApi("NO_KEY")


@pytest.mark.parametrize(
    ("engine", "answer", "named"),
    [
        (SerpApi, (200, {}, ["no", "page"]), "does not answer with results"),
        (SerpApi, (200, {}, {"organic_results": [{"title": 1, "snippet": "x"}]}), "does not answer with results"),
        (GoogleCustomSearch, (400, {}, {"error": WRONG_KEY}), "API key not valid"),
    ],
)
def test_answers_that_are_no_results(engine, answer, named):
    with scripted(answer) as (url, _), pytest.raises(UserError, match=named):
        web(engine(url=url)).search(["a"], ["en"], 1)
