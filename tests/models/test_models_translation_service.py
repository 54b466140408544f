"""Translation over HTTP: few calls for many callers, one sentence for whatever is wrong, nothing silent."""

import concurrent.futures
import contextlib
import threading

import httpx2
import pytest
from fastapi import FastAPI
from support.local_server import served

from lcrag.commands.serve import TranslationLimits
from lcrag.commands.serve.routes import add_translate_route
from lcrag.episodes import GenerationFailure, Retries, Translate, TranslationFailure
from lcrag.episodes.host_services import answer_translations
from lcrag.errors import UserError
from lcrag.models.translation_service import RemoteTranslator
from lcrag.retrieval import NoCollections
from lcrag.retrieval.remote import Patience
from lcrag.retrieval.service import make_application

QUICK = Patience(attempts=2, first_wait_seconds=0.01, longest_wait_seconds=0.02)
LIMITS = TranslationLimits(texts=4, text_characters=100)


class Marking:
    """Translates by marking; keeps its calls, and some texts break it."""

    def __init__(self):
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, texts, source, target):
        self.asked.append((tuple(texts), source, target))
        self.gate.wait(20)
        if "broken" in texts:
            raise RuntimeError("something broke")
        if "away" in texts:
            raise UserError("the model is away: start it")
        said = {"?": TranslationFailure("no word"), "!": TranslationFailure("it was cut", unavailable=True)}
        return [said.get(text, f"{text}>{target}") for text in texts]


@contextlib.contextmanager
def serving(translator, limits=LIMITS, **options):
    application = make_application(NoCollections())
    add_translate_route(application, translator, limits=limits, **options)
    with served(application) as url:
        yield url


@pytest.fixture(scope="module")
def service():
    translator = Marking()
    with serving(translator) as url:
        yield translator, url


def test_what_is_served_is_what_the_translator_says(service):
    translator, url = service
    remote = RemoteTranslator(f"{url}/translate", QUICK, texts=2)
    texts = ["a", "?", "ä\n</b>", "日本"]
    assert remote(texts, None, "en") == ["a>en", TranslationFailure("no word"), "ä\n</b>>en", "日本>en"]
    assert remote(["a"], "fi", "fr") == ["a>fr"]
    assert translator.asked[-1] == (("a",), "fi", "fr")
    assert remote([], None, "en") == []
    assert httpx2.get(f"{url}/healthz").json() == {"status": "ok", "languages": [], "unanswered": 0}


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"{", 422, "Invalid JSON"),
        (b'{"texts": "a", "target": "en"}', 422, "texts: Input should be a valid array"),
        (b'{"texts": ["a"]}', 422, "target: Field required"),
        (b'{"texts": ["a", "a", "a", "a", "a"], "target": "en"}', 413, "5 texts in one request: ask at most 4"),
        (b'{"texts": ["%b"], "target": "en"}' % (b"a" * 101), 413, "a text has 101 characters"),
        (b'{"texts": ["broken"], "target": "en"}', 500, "the translation failed: RuntimeError: something broke"),
        (b'{"texts": ["away"], "target": "en"}', 503, "the model is away: start it"),
    ],
)
def test_refusals_are_one_sentence(service, body, status, part):
    answer = httpx2.post(f"{service[1]}/translate", content=body)
    assert answer.status_code == status
    assert part in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_callers_share_calls():
    translator = Marking()
    with serving(translator, window_seconds=0.3) as url, concurrent.futures.ThreadPoolExecutor(6) as pool:
        remote = RemoteTranslator(url, QUICK)
        answers = list(pool.map(lambda number: remote([f"t{number}"], None, "en"), range(6)))
    assert answers == [[f"t{number}>en"] for number in range(6)]
    assert len(translator.asked) < 6


def test_a_translator_that_fails_is_told_from_a_text_that_it_cannot_translate(service):
    asked = [Translate(text, None, "en") for text in ("?", "!")]
    answers = answer_translations(RemoteTranslator(service[1], QUICK), asked, Retries(1, 0.0))
    assert answers == [TranslationFailure("no word"), GenerationFailure("it was cut")]


def test_a_text_that_breaks_the_service_fails_alone(service):
    remote = RemoteTranslator(service[1], QUICK)
    asked = [Translate(text, None, "en") for text in ("a", "broken", "b")]
    first, broken, last = answer_translations(remote, asked, Retries(1, 0.0))
    assert (first, last) == ("a>en", "b>en")
    assert isinstance(broken, GenerationFailure)
    assert "something broke" in broken.reason


def test_a_service_whose_translator_is_away_or_that_is_no_translation_service(service):
    with pytest.raises(UserError, match="does not answer after 2 attempts .*the model is away: start it"):
        RemoteTranslator(service[1], QUICK)(["away"], None, "en")
    with pytest.raises(UserError, match="the translation service at http://127.0.0.1:9/translate does not answer"):
        RemoteTranslator("http://127.0.0.1:9", QUICK)
    with pytest.raises(UserError, match=r"the translation service at \*\*\*@127.0.0.1:9/translate does not answer"):
        RemoteTranslator("http://ann:hunter2@127.0.0.1:9", QUICK)
    other = FastAPI()
    other.post("/translate")(lambda: {"result": []})
    with served(other) as url, pytest.raises(UserError, match="does not speak the /translate API"):
        RemoteTranslator(url, QUICK)
    with served(FastAPI()) as url, pytest.raises(UserError, match="rejects the request"):
        RemoteTranslator(url, QUICK)
