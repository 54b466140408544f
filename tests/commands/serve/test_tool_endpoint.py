"""`POST /search_tool`: batches of questions, refusals and failures."""

import concurrent.futures
import contextlib
import json

import httpx2
import pytest
from support.local_server import served
from tool_parts import LCRL, scripted_tool

from lcrag.commands.serve import ToolLimits, ToolService
from lcrag.commands.serve.routes import add_tool_route
from lcrag.errors import UserError
from lcrag.retrieval.service import make_application

LIMITS = ToolLimits(question_characters=1500)


@contextlib.contextmanager
def serving(tool, limits=LIMITS, window_seconds=0.0):
    application = make_application(tool.collections)
    add_tool_route(application, ToolService(tool, limits=limits, window_seconds=window_seconds))
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
    assert ask(url, question="Who?").json()["language"] == "en"
    assert ask(url, question="Who?", language=None).json()["language"] == "en"


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b'{"question": "Who?", "lang": "fi"}', 422, "lang: Extra inputs are not permitted"),
        (b'{"question": "  "}', 422, "the question is empty"),
        (json.dumps({"question": "Who " * 400}).encode(), 413, "the question has 1600 characters: ask at most 1500"),
    ],
)
def test_refusals_are_one_sentence(url, tool, body, status, part):
    before = len(tool.runner.runs)
    answer = httpx2.post(f"{url}/search_tool", content=body)
    assert answer.status_code == status
    assert part in answer.json()["detail"]
    assert len(tool.runner.runs) == before, "the engine did not run"


def test_concurrent_questions_share_runs():
    tool = scripted_tool(slots=4)
    with (
        serving(tool, window_seconds=0.5) as url,
        concurrent.futures.ThreadPoolExecutor(6) as pool,
    ):
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
    assert bad.status_code == 500
    assert bad.json()["detail"].startswith("the question could not be answered: RuntimeError: something broke")
    assert (away.status_code, away.json()["detail"]) == (
        500,
        "the question could not be answered: the service is away",
    )


def test_time_limit():
    tool = scripted_tool()
    tool.runner.gate.clear()
    with serving(tool, ToolLimits(answer_seconds=0.5)) as url:
        assert ask(url, question="First?").status_code == 504
        assert httpx2.get(f"{url}/healthz").json()["status"] == "ok", "health does not wait for the engine"
        tool.runner.gate.set()
        assert ask(url, question="Again?").status_code == 200


def test_searches_of_the_same_service(url):
    answer = httpx2.post(f"{url}/retrieve", json={"queries": ["who"], "languages": ["fi"]})
    assert answer.json()["result"][0][0]["id"] == "fi-0"
    assert httpx2.get(f"{url}/search_tool").status_code == 405


def test_its_description(url):
    paths = httpx2.get(f"{url}/openapi.json").json()
    asked = paths["paths"]["/search_tool"]["post"]
    assert set(asked["requestBody"]["content"]["application/json"]["schema"]["properties"]) == {"question", "language"}
    found = asked["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert {"answer", "evidence", "passages"} <= set(paths["components"]["schemas"][found]["properties"])
