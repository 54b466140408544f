"""Translators: their requests, what they remember, and a service for many callers."""

import httpx2
import pytest
from fastapi import FastAPI
from support.local_server import served, stand_in_chat

from lcrag.commands.serve import add_translate_route
from lcrag.data.questions import Question
from lcrag.episodes import Completion, GenerationFailure, Translate, TranslationFailure
from lcrag.episodes.runner import answer_translations
from lcrag.errors import UserError
from lcrag.models import (
    EndpointTranslator,
    FirstTranslator,
    ModelTranslator,
    RememberedTranslator,
    RemoteTranslator,
    TranslationMemory,
)
from lcrag.retries import Patience
from lcrag.retrieval import NoCollections
from lcrag.retrieval.service import make_application

QUICK = Patience(attempts=2, first_wait_seconds=0.01, longest_wait_seconds=0.02)


class Marking:
    """Translates by marking; keeps its calls, and some texts break it."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts, source, target):
        self.asked.append((tuple(texts), source, target))
        if "broken" in texts:
            raise RuntimeError("something broke")
        if "away" in texts:
            raise UserError("the model is away: start it")
        failures = {"?": TranslationFailure("no word"), "!": TranslationFailure("it was cut", unavailable=True)}
        return [failures.get(text, f"{text}>{target}") for text in texts]


def test_the_cache_in_memory_drops_the_oldest():
    remembered = RememberedTranslator(Marking(), texts=2)
    assert remembered(["a", "b", "a"], None, "en") == ["a>en", "b>en", "a>en"]
    assert remembered(["b", "c"], None, "en") == ["b>en", "c>en"]
    assert remembered(["a"], None, "fi") == ["a>fi"]
    assert [texts for texts, *_ in remembered._translator.asked] == [("a", "b"), ("c",), ("a",)]


def test_a_translation_memory_holds_the_versions_of_questions():
    texts = [("1", "en", "Where is Oslo?"), ("1", "fi", "Missä on Oslo?"), ("2", "fi", "Kuka?")]
    memory = TranslationMemory(
        Question(id=key, dataset="own", language=code, text=text, answers=("a",)) for key, code, text in texts
    )
    english, other, one_version, own = memory(["Missä on Oslo? ", "Missä?", "Kuka?", "Where is Oslo?"], None, "en")
    assert english == own == "Where is Oslo?"
    assert "does not hold this text" in other.reason
    assert "in fi, not en" in one_version.reason


def test_several_translators_are_asked_in_turn():
    def only(*known):
        return lambda texts, source, target: [
            f"{text}{known[0]}" if text in known else TranslationFailure(f"not among {known}") for text in texts
        ]

    several = FirstTranslator([only("a", "b"), only("c", "a")])
    assert several(["c", "a", "x"], None, "en") == ["cc", "aa", TranslationFailure("not among ('c', 'a')")]


def test_a_second_model_translates():
    asked = []

    def model(requests):
        asked.append(requests)
        good = [len(asked) > 1 or "Text: a" in prompt for prompt, _ in requests]
        texts = [f"Well <translation>{prompt[-1]}!</translation>" for prompt, _ in requests]
        return [
            Completion(text=text if is_good else "Well", finish_reason="stop", tokens=3)
            for is_good, text in zip(good, texts, strict=True)
        ]

    assert ModelTranslator(model)(["a", "b"], None, "fr") == ["a!", "b!"]
    assert [[(g.temperature, g.seed, g.episode) for _, g in requests] for requests in asked] == [
        [(0.0, 0, 0), (0.0, 0, 1)],
        [(0.7, 1, 1)],
    ]
    assert ModelTranslator(model)([], None, "fr") == []


def test_mistakes_name_their_binding():
    for mistake, named in [
        (lambda: RememberedTranslator(Marking(), texts=0), "RememberedTranslator.texts"),
        (lambda: FirstTranslator([]), "FirstTranslator.translators"),
        (lambda: ModelTranslator(lambda requests: [], attempts=0), "ModelTranslator.attempts"),
    ]:
        with pytest.raises(UserError, match=named):
            mistake()


def test_an_endpoint_translates():
    """It leaves the tags out once, then translates."""
    seen = []

    def speak(prompt):
        seen.append(prompt)
        text = prompt.split("Text: ")[1]
        return "Sure!" if len(seen) == 1 or text == "silent" else f"<translation> {text}-en </translation>"

    with served(stand_in_chat(speak)) as url:
        translator = EndpointTranslator("good", f"{url}/v1", concurrency=1)
        assert translator(["Ruotsi", "Suomi"], "fi", "en") == ["Ruotsi-en", "Suomi-en"]
        assert "from Finnish to English" in seen[0]
        assert len(seen) == 3
        assert translator(["Suomi"], None, "en") == ["Suomi-en"]
        assert seen[-1].startswith("Translate the text to English.")
        reasons = [translator([text], "fi", target)[0].reason for text, target in (("silent", "en"), ("Ruotsi", "xx"))]
    assert ["'Sure!'" in reasons[0], "'xx'" in reasons[1]] == [True, True]


@pytest.fixture(scope="module")
def service():
    translator, application = Marking(), make_application(NoCollections())
    add_translate_route(application, translator)
    with served(application) as url:
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
        (b'{"texts": ["a"]}', 422, "target: Field required"),
        (b'{"texts": ["broken"], "target": "en"}', 500, "RuntimeError: something broke"),
        (b'{"texts": ["away"], "target": "en"}', 503, "the model is away: start it"),
    ],
)
def test_refusals_are_one_sentence(service, body, status, part):
    answer = httpx2.post(f"{service[1]}/translate", content=body)
    assert answer.status_code == status
    assert part in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_a_text_that_fails_does_so_alone(service):
    """A translator that fails is told from a text that it cannot translate."""
    asked = [Translate(text, None, "en") for text in ("a", "broken", "?", "!", "b")]
    answers = answer_translations(
        RemoteTranslator(service[1], QUICK), asked, Patience(attempts=1, first_wait_seconds=0.0)
    )
    assert (answers[0], answers[4]) == ("a>en", "b>en")
    assert isinstance(answers[1], GenerationFailure)
    assert "something broke" in answers[1].reason
    assert answers[2:4] == [TranslationFailure("no word"), GenerationFailure("it was cut")]


def test_services_that_are_away_or_no_translation_services(service):
    with pytest.raises(UserError, match="2 attempts .*the model is away"):
        RemoteTranslator(service[1], QUICK)(["away"], None, "en")
    with pytest.raises(UserError, match=r"\*\*\*@127.0.0.1:9/translate does not answer"):
        RemoteTranslator("http://ann:hunter2@127.0.0.1:9", QUICK)
    other = FastAPI()
    other.post("/translate")(lambda: {"result": []})
    for application, named in ((other, "does not speak the /translate API"), (FastAPI(), "rejects the request")):
        with served(application) as url, pytest.raises(UserError, match=named):
            RemoteTranslator(url, QUICK)
