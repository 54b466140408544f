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
from lcrag.models import translators
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
    remembered = translators.RememberedTranslator(Marking(), texts=2)
    assert remembered(["a", "b", "a"], None, "en") == ["a>en", "b>en", "a>en"]
    assert remembered(["b", "c"], None, "en") == ["b>en", "c>en"]
    assert remembered(["a"], None, "fi") == ["a>fi"]
    assert [texts for texts, *_ in remembered._translator.asked] == [("a", "b"), ("c",), ("a",)]


def test_a_translation_memory_holds_the_versions_of_questions():
    texts = [("1", "en", "Where is Oslo?"), ("1", "fi", "Missä on Oslo?"), ("2", "fi", "Kuka?")]
    memory = translators.TranslationMemory(
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

    several = translators.FirstTranslator([only("a", "b"), only("c", "a")])
    assert several(["c", "a", "x"], None, "en") == ["cc", "aa", TranslationFailure("not among ('c', 'a')")]


def test_a_model_translates_and_is_asked_again_if_it_leaves_the_tags_out():
    asked = []

    def model(requests):
        asked.append(requests)
        texts = [prompt.split("Text: ")[1] for prompt, _ in requests]
        silent = ("silent", "b") if len(asked) == 1 else ("silent",)
        said = ["Sure!" if text in silent else f"Well <translation> {text}! </translation>" for text in texts]
        return [Completion(text=text, finish_reason="stop", tokens=3) for text in said]

    translator = translators.ModelTranslator(model)
    assert translator(["a", "b"], "fi", "fr") == ["a!", "b!"]
    assert [[(g.temperature, g.seed, g.episode) for _, g in requests] for requests in asked] == [
        [(0.0, 0, 0), (0.0, 0, 1)],
        [(0.7, 1, 1)],
    ]
    assert "from Finnish to French" in asked[0][0][0]
    assert translator(["a"], None, "fr") == ["a!"]
    assert asked[-1][0][0].startswith("Translate the text to French.")
    assert "'Sure!'" in translator(["silent"], "fi", "en")[0].reason
    assert "'xx'" in translator(["a"], "fi", "xx")[0].reason
    assert translator([], None, "fr") == []
    with served(stand_in_chat(lambda prompt: "<translation>a-en</translation>")) as url:
        assert translators.EndpointTranslator("good", f"{url}/v1", concurrency=1)(["a"], "fi", "en") == ["a-en"]


def test_mistakes_name_their_binding():
    for mistake, named in [
        (lambda: translators.RememberedTranslator(Marking(), texts=0), "RememberedTranslator.texts"),
        (lambda: translators.FirstTranslator([]), "FirstTranslator.translators"),
        (lambda: translators.ModelTranslator(lambda requests: [], attempts=0), "ModelTranslator.attempts"),
    ]:
        with pytest.raises(UserError, match=named):
            mistake()


@pytest.fixture(scope="module")
def service():
    translator, application = Marking(), make_application(NoCollections())
    add_translate_route(application, translator)
    with served(application) as url:
        yield translator, url


def test_what_is_served_is_what_the_translator_says(service):
    translator, url = service
    remote = translators.RemoteTranslator(f"{url}/translate", QUICK, texts=2)
    texts = ["a", "?", "ä\n</b>", "日本"]
    assert remote(texts, None, "en") == ["a>en", TranslationFailure("no word"), "ä\n</b>>en", "日本>en"]
    assert remote(["a"], "fi", "fr") == ["a>fr"]
    assert translator.asked[-1] == (("a",), "fi", "fr")
    assert remote([], None, "en") == []
    assert httpx2.get(f"{url}/healthz").json() == {"status": "ok", "languages": [], "unanswered": 0}


def test_a_text_that_fails_does_so_alone(service):
    asked = [Translate(text, None, "en") for text in ("a", "broken", "?", "!", "b")]
    answers = answer_translations(
        translators.RemoteTranslator(service[1], QUICK), asked, Patience(attempts=1, first_wait_seconds=0.0)
    )
    assert (answers[0], answers[4]) == ("a>en", "b>en")
    assert isinstance(answers[1], GenerationFailure)
    assert "something broke" in answers[1].reason
    assert answers[2:4] == [TranslationFailure("no word"), GenerationFailure("it was cut")]


def test_services_that_are_away_or_no_translation_services(service):
    with pytest.raises(UserError, match="2 attempts .*the model is away"):
        translators.RemoteTranslator(service[1], QUICK)(["away"], None, "en")
    with pytest.raises(UserError, match=r"\*\*\*@127.0.0.1:9/translate does not answer"):
        translators.RemoteTranslator("http://ann:hunter2@127.0.0.1:9", QUICK)
    other = FastAPI()
    other.post("/translate")(lambda: {"result": []})
    for application, named in ((other, "does not speak the /translate API"), (FastAPI(), "rejects the request")):
        with served(application) as url, pytest.raises(UserError, match=named):
            translators.RemoteTranslator(url, QUICK)
