"""Translators: their requests, their caches, and what a killed process leaves."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.local_server import served, stand_in_chat

from lcrag.data.questions import Question
from lcrag.episodes import Completion, TranslationFailure
from lcrag.errors import UserError
from lcrag.models import (
    EndpointTranslator,
    FirstTranslator,
    ModelTranslator,
    RememberedTranslator,
    TranslationCache,
    TranslationMemory,
)


class Marking:
    """Translates by marking, and keeps its calls."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts, source, target):
        self.asked.append((tuple(texts), source, target))
        return [f"{text}>{target}" for text in texts]


def test_the_cache_asks_for_what_it_lacks(tmp_path):
    path, translator = tmp_path / "made" / "translations.jsonl", Marking()
    cache = TranslationCache(path, translator, batch=2)
    assert cache(["a", "b", "a", "c"], "fi", "en") == ["a>en", "b>en", "a>en", "c>en"]
    assert [texts for texts, *_ in translator.asked] == [("a", "b"), ("c",)]
    assert TranslationCache(path, translator)(["c", "d"], "fi", "en") == ["c>en", "d>en"]
    assert translator.asked[-1] == (("d",), "fi", "en")
    assert TranslationCache(path)(["d", "a"], "fi", "en") == ["d>en", "a>en"]
    with pytest.raises(UserError, match=r"lacks 1 translations from en to fi, the first of 'a': name a translator"):
        TranslationCache(path)(["a"], "en", "fi")
    row = {"source": "fi", "target": "en", "text": "a", "translation": "a>en"}
    assert json.loads(path.read_text().splitlines()[0]) == row


KILLED = """
    import os, signal, sys
    from lcrag.models import TranslationCache

    def translator(texts, source, target):
        if texts == ["c"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return [f"{text}>en" for text in texts]

    TranslationCache(sys.argv[1], translator, batch=1)(["a", "b", "c", "d"], "fi", "en")
"""


def test_a_killed_process_keeps_every_finished_batch(tmp_path):
    path, root = tmp_path / "translations.jsonl", Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), path], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    with path.open("ab") as file:
        file.write(b'{"source": "fi", "target": "en", "text": "c", "transl')  # half a line
    translator = Marking()
    assert TranslationCache(path, translator)(["a", "b", "c", "d"], "fi", "en") == ["a>en", "b>en", "c>en", "d>en"]
    assert translator.asked == [(("c", "d"), "fi", "en")]
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == list("abcd")


def test_failures_are_not_cached(tmp_path):
    path, told = tmp_path / "translations.jsonl", []

    def moody(texts, source, target):
        told.append(list(texts))
        return [TranslationFailure("no") if text == "b" and len(told) < 3 else f"{text}!" for text in texts]

    cache = TranslationCache(path, moody)
    assert cache(["a", "b"], None, "en") == cache(["a", "b"], None, "en") == ["a!", TranslationFailure("no")]
    assert told[-1] == ["b"]
    assert cache(["b", "a"], None, "en") == ["b!", "a!"]
    assert TranslationCache(path)(["a", "b"], None, "en") == ["a!", "b!"]


def test_the_cache_in_memory_drops_the_oldest():
    remembered = RememberedTranslator(Marking(), texts=2)
    assert remembered(["a", "b", "a"], None, "en") == ["a>en", "b>en", "a>en"]
    assert remembered(["b", "c"], None, "en") == ["b>en", "c>en"]
    assert remembered(["a"], None, "fi") == ["a>fi"]
    assert [texts for texts, *_ in remembered._translator.asked] == [("a", "b"), ("c",), ("a",)]


def test_a_translation_memory_holds_the_versions_of_questions():
    def question(key, language, text):
        return Question(id=key, dataset="own", language=language, text=text, answers=("a",))

    memory = TranslationMemory(
        [question("1", "en", "Where is Oslo?"), question("1", "fi", "Missä on Oslo?"), question("2", "fi", "Kuka?")]
    )
    english, other, one_version, own = memory(["Missä on Oslo? ", "Missä?", "Kuka?", "Where is Oslo?"], None, "en")
    assert english == own == "Where is Oslo?"
    assert "does not hold this text" in other.reason
    assert one_version.reason == "the translation memory holds this text in fi, not en"


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
            Completion(text=text if each else "Well", finish_reason="stop", tokens=3)
            for each, text in zip(good, texts, strict=True)
        ]

    assert ModelTranslator(model)(["a", "b"], None, "fr") == ["a!", "b!"]
    assert [[(g.temperature, g.seed, g.episode) for _, g in requests] for requests in asked] == [
        [(0.0, 0, 0), (0.0, 0, 1)],
        [(0.7, 1, 1)],
    ]
    assert ModelTranslator(model)([], None, "fr") == []


def test_mistakes_are_one_sentence(tmp_path):
    path, empty = tmp_path / "translations.jsonl", lambda texts, source, target: [" "] * len(texts)

    def meddling(texts, source, target):
        return TranslationCache(path, Marking())(texts, source, target)

    for translator, message in [
        (meddling, "another process is adding to .*translations.jsonl"),
        (empty, "the translator says nothing for 'a' from fi to en"),
    ]:
        with pytest.raises(UserError, match=message):
            TranslationCache(path, translator)(["a"], "fi", "en")
    path.write_text('{"source": "fi"}\n')
    with pytest.raises(UserError, match="translations.jsonl, line 1, field target: field required"):
        TranslationCache(path)
    for make, message in [
        (lambda: RememberedTranslator(Marking(), texts=0), "RememberedTranslator.texts"),
        (lambda: FirstTranslator([]), "FirstTranslator.translators is empty"),
        (lambda: ModelTranslator(lambda requests: [], attempts=0), "ModelTranslator.attempts"),
    ]:
        with pytest.raises(UserError, match=message):
            make()


def test_an_endpoint_translates(monkeypatch):
    """It is unavailable for a moment, then leaves the tags out, then translates."""
    seen = []

    def speak(prompt):
        seen.append(prompt)
        text = prompt.split("Text: ")[1]
        if text == "refused" or len(seen) == 1:
            return 503 if len(seen) == 1 else 404
        return "Sure!" if len(seen) == 2 or text == "silent" else f"<translation> {text}-en </translation>"

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with served(stand_in_chat(speak)) as url:
        translator = EndpointTranslator("good", f"{url}/v1", concurrency=1)
        assert translator(["Ruotsi", "Suomi"], "fi", "en") == ["Ruotsi-en", "Suomi-en"]
        assert "from Finnish to English" in seen[0]
        assert len(seen) == 4
        assert translator(["Suomi"], None, "en") == ["Suomi-en"]
        assert seen[-1].startswith("Translate the text to English.")
        silent = TranslationFailure("the model does not translate, it says 'Sure!'")
        assert translator(["silent"], "fi", "en") == [silent]
        assert translator(["Ruotsi"], "fi", "xx") == [TranslationFailure("the model is asked for no language 'xx'")]
        with pytest.raises(UserError, match="does not answer .*not now.*: check its address") as caught:
            translator(["refused"], "fi", "en")
    assert "secret" not in str(caught.value)


def test_a_client_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match=r"pip install 'lcrag\[endpoint\]'"):
        EndpointTranslator("model")
