"""`lcrag curate translations` of summaries: articles are spared, the report counts them, and a run goes on."""

import codecs
import json
import re
import threading

import gin
import pytest
from experiment_parts import json_lines

from lcrag import main
from lcrag.testing.local_server import served, stand_in_chat

pytest.importorskip("openai")

NAMES = ("Anna", "Bert", "Silva", "Lossy", "Dirk")  # Silva's summary is refused, Lossy's gets lost, Dirk's is off


def article(name):
    return f"{name} walked over the mountains to the market in the old town, and sold all of the apples before noon."


def summary(name):
    return f"{name} sold all apples at the market of the town."


def speak(prompt):
    """Translates by turning letters, and fails as the names want it."""
    if "<summary>" in prompt:
        return f"<verdict>{'DIFFERENT' if 'Dirk' in prompt else 'SAME'}</verdict>"
    turned = codecs.encode(re.search(r"<input>\n(.*)\n</input>", prompt, re.DOTALL)[1], "rot13")
    if summary("Silva") in prompt:
        return "I cannot."
    lost = {
        summary("Lossy"): "Nothing at all is left.",
        summary("Dirk"): "Dirk sold all apples at a market of the town.",
    }
    return f"<output>{lost.get(turned, turned)}</output>"


class Chat:
    """Answers by `speak`, from a number of requests on with an error, and keeps the prompts."""

    def __init__(self, last=10_000):
        self.prompts, self._last, self._lock = [], last, threading.Lock()

    def __call__(self, prompt):
        with self._lock:
            if len(self.prompts) >= self._last:
                return 503
            self.prompts.append(prompt)
        return speak(prompt)


def curate(folder, url):
    gin.clear_config()
    rows = [
        {"id": name, "language": "en", "question": article(name), "answers": [summary(name)]}
        | {"extra": {"domain": "summarisation"}}
        for name in NAMES
    ]
    (folder / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = ["curate", "translations", "--gin_file=translate_r1/pipeline.gin", f"--output_dir={folder / 'run'}"]
    bindings = (
        f"source/jsonl_questions.files=['{folder / 'source.jsonl'}']",
        "LANGUAGES=('am',)",
        f"translations.places={len(NAMES)}",
        "EndpointModel.model='strong'",
        f"EndpointModel.url='{url}/v1'",
        "EndpointModel.attempts=1",
        "EndpointModel.in_flight=1",
    )
    return main.run(line + [f"--gin.{binding}" for binding in bindings])


def test_articles_are_spared_and_counted_and_nothing_is_asked_twice(tmp_path):
    with served(stand_in_chat(first := Chat(last=6))) as url:
        assert curate(tmp_path, url) == 2  # the endpoint goes away
    with served(stand_in_chat(second := Chat())) as url:
        assert curate(tmp_path, url) == 0
    prompts = first.prompts + second.prompts
    assert len(set(prompts)) == len(prompts)
    for name in NAMES:
        assert any(article(name) in prompt for prompt in prompts if "<input>" in prompt) == (
            name not in ("Silva", "Lossy")
        )
    [language] = json.loads((tmp_path / "run" / "report.json").read_text())["languages"]
    assert (language["filled"], language["texts_spared"]) == (2, 2)
    assert language["removed"]["forward translation"] == {"label: no output": 1}
    assert language["removed"]["back-translation"] == {"label: low chrF": 1}
    assert language["removed"]["judge"] == {"DIFFERENT": 1}
    assert "Texts never translated, since their label failed: 2." in (tmp_path / "run" / "report.md").read_text()
    attempts = {row["id"]: row for row in json_lines(tmp_path / "run" / "attempts.jsonl")}
    assert attempts["Lossy"]["portion"] == "label" and "question" not in attempts["Lossy"]["translation"]
    made = json_lines(tmp_path / "run" / "questions.jsonl")
    assert {(row["question"], *row["answers"]) for row in made} == {
        (codecs.encode(article(name), "rot13"), codecs.encode(summary(name), "rot13")) for name in ("Anna", "Bert")
    }
