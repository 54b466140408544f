"""Web search through the interface of collections, against local stand-ins of the engines."""

import logging

import pytest
from support.local_server import scripted

from lcrag.errors import UserError
from lcrag.retries import Patience, ServiceRefusal
from lcrag.retrieval import Hit
from lcrag.retrieval.remote import RemoteCollections
from lcrag.retrieval.web import GoogleCustomSearch, SerpApi, WebSearch

QUICK = Patience(first_wait_seconds=0.001, longest_wait_seconds=0.01, attempts=3)
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
    """A search engine that knows a few queries, and one key."""

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


def web(engine, languages=("en", "zh")):
    return RemoteCollections(WebSearch(engine, languages, QUICK))


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
    with pytest.raises(UserError, match="does not answer after 3 attempts") as unanswered:
        web(away).search(["capital of Chad"], ["en"], 1)
    shown = f"{caught.value} {unanswered.value} {web(google[0]).content_hashes()}"
    assert KEY not in shown
    assert "another-key" not in shown
    assert not [record for record in caplog.records if record.name.startswith("http") and KEY in record.getMessage()]
    with pytest.raises(UserError, match="NO_KEY is not set"):
        SerpApi("NO_KEY")


def test_google_refuses_a_wrong_key_with_status_400():
    said = {"message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}
    with scripted((400, {}, {"error": said})) as (url, _), pytest.raises(UserError, match="API key not valid"):
        web(GoogleCustomSearch(url=url)).search(["a"], ["en"], 1)


@pytest.mark.parametrize("page", [["no", "page"], {"organic_results": [{"title": 1, "snippet": "x"}]}])
def test_invalid_result_pages(page):
    with scripted((200, {}, page)) as (url, _), pytest.raises(UserError, match="does not answer with results"):
        web(SerpApi(url=url)).search(["a"], ["en"], 1)
