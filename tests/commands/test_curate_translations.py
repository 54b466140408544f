"""`lcrag curate translations` by command: a stand-in endpoint that fails at every stage, a kill, and what follows."""

import codecs
import collections
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gin
import jax
import pytest
from experiment_parts import TOKENIZER, assert_mistake, contents, json_lines
from support import tiny_config
from support.local_server import served, stand_in_chat

from lcrag import main
from lcrag.data.rows import jsonl_questions
from lcrag.methods.translate_r1.pipeline import STAGES, ModelRequest
from lcrag.policy import initialise, load_tokenizer, save_hugging_face

pytest.importorskip("openai")

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
# A process whose functions are checked as here: gin sees the defaults of the others, and would call this another run.
AS_HERE = "import runpy, sys; runpy.run_path('tests/conftest.py'); from lcrag.main import run; run(sys.argv[1:])"

# A name in the problem says what goes wrong with it, and at which stage.
FAILURES = {
    "Silva": "forward translation",
    "Rhea": "heuristics",
    "Shaw": "heuristics",
    "Longo": "heuristics",
    "Ecco": "heuristics",
    "Muto": "back-translation",
    "Lossy": "back-translation",
    "Dirk": "judge",
    "Vago": "judge",
}
SOUND = ("Anna", "Bert", "Cleo", "Dora", "Emil", "Faye", "Gina")
NAMES = (*FAILURES, *SOUND)


def problem(name):
    return f"{name} has 3 apples and buys 5 more at the market in town. How many apples does {name} have now?"


def turned(text):
    """What the stand-in calls a translation, and its back-translation too."""
    return codecs.encode(text, "rot13")


def speak(prompt):
    """A model that translates by turning letters, and fails as the names want it."""
    if "<original>" in prompt:
        answer = {"Dirk": "DIFFERENT", "Vago": "It depends."}
        name = next(name for name in NAMES if name in prompt)
        return f"Let me see. <verdict>{answer.get(name, 'same')}</verdict>"
    text = re.search(r"<input>\n(.*)\n</input>", prompt, re.DOTALL)[1]
    if "from English to" in prompt:
        name = next((name for name in NAMES if name in text), "")
        said = {"Rhea": "la" * 50, "Shaw": "x", "Longo": " ".join(map(str, range(1000, 1100))), "Ecco": text}
        return "I cannot." if name == "Silva" else f"<output>{said.get(name, turned(text))}</output>"
    name = next((name for name in NAMES if name in turned(text)), "")
    said = {"Lossy": "Nothing at all is left."}.get(name, turned(text).replace("at the market ", ""))
    return "I cannot." if name == "Muto" else f"<output>{said}</output>"


class Served:
    """Answers by `speak`, and counts the requests by their prompts; `before` is called with the number of each."""

    def __init__(self, before=lambda number: None, speak=speak):
        self.prompts, self._before, self._speak, self._lock = collections.Counter(), before, speak, threading.Lock()

    def __call__(self, prompt):
        with self._lock:
            self.prompts[prompt] += 1
            number = self.prompts.total()
        return self._before(number) or self._speak(prompt)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file of problems, of which one is too short of language and one in two languages."""
    rows = [
        {"id": name, "language": "en", "question": problem(name), "answers": ["8"], "extra": {"domain": "mathematics"}}
        for name in NAMES
    ]
    rows.append(rows[-1] | {"id": "formula", "question": "$1 + 2 = 3$ + 4"})
    rows.append(rows[-2] | {"language": "fi", "question": "Montako omenaa Ginalla on?"})
    path = tmp_path_factory.mktemp("source") / "source.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def words(source, output, url, *bindings):
    given = (
        f"source/jsonl_questions.files=['{source}']",
        "LANGUAGES=('en', 'fi', 'am')",
        "translations.places=5",
        "translator/EndpointModel.model='strong'",
        "judge/EndpointModel.model='stern'",
        f"EndpointModel.url='{url}/v1'",
        "EndpointModel.attempts=1",
    )
    line = ["curate", "translations", "--gin_file=translate_r1/pipeline.gin", f"--output_dir={output}"]
    return line + [f"--gin.{binding}" for binding in (*given, *bindings)]


def curate(*arguments):
    """Runs the command in this process, as a fresh process would; returns its exit status."""
    gin.clear_config()
    return main.run(words(*arguments))


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
    """The output of a whole run; later calls find nothing to do in it."""
    output = tmp_path_factory.mktemp("finished") / "run"
    with served(stand_in_chat(chat := Served())) as url:
        assert curate(source, output, url) == 0
    assert set(chat.prompts.values()) <= {1, 4}
    return output


def results(folder):
    """What does not depend on when answers came and on what an earlier call had asked."""
    named = {path.name: content for path, content in contents(folder).items()}
    requests = sorted(named.pop("requests.jsonl").splitlines())
    return {name: content for name, content in named.items() if name != "run.json"} | {"requests": requests}


def test_every_stage_removes_and_every_place_is_filled(finished):
    report = json.loads((finished / "report.json").read_text())
    assert report["sources"] == {"mathematics": {"read": 17, "removed": {"too little natural language": 1}}}
    english, finnish, amharic = report["languages"]
    assert (english["filled"], english["attempts"]) == (5, 5)
    assert english["chrf"] is None
    for language in (finnish, amharic):
        assert language["filled"] == language["places"] == 5
        removed = sum(sum(causes.values()) for causes in language["removed"].values())
        assert language["attempts"] == 5 + removed
        assert 0.8 < language["chrf"] < 1
    attempts = json_lines(finished / "attempts.jsonl")
    assert all(row["removed_by"] == FAILURES.get(row["id"]) for row in attempts if row["language"] not in ("en",))
    assert (finished / "report.md").read_text().count("| Amharic | 5 | 5 |") == 1
    rows = json_lines(finished / "requests.jsonl")
    assert report["requests"] == dict(sorted(collections.Counter(row["role"] for row in rows).items()))


def test_what_is_written_is_read_as_coupled_questions(finished):
    questions = jsonl_questions([finished / "questions.jsonl"], dataset="made")
    assert collections.Counter(question.language for question in questions) == {"en": 5, "fi": 5, "am": 5}
    by_id = collections.defaultdict(dict)
    for question in questions:
        by_id[question.id][question.language] = question
        assert question.answers == ("8",)
        assert question.domain == "mathematics"
    several = [versions for versions in by_id.values() if len(versions) == 3]
    assert several  # the order of the sources is the same in every language
    assert any("Montako" in versions["fi"].text for versions in by_id.values() if "fi" in versions)
    made = next(versions["am"] for versions in by_id.values() if "am" in versions)
    assert made.extra["original"] == turned(made.text)
    assert made.extra["translated_from"] == "en"


def test_a_pool_that_is_too_small_is_used_up(source, tmp_path):
    with served(stand_in_chat(Served())) as url:
        assert curate(source, tmp_path / "run", url, "LANGUAGES=('am',)", "translations.places=12") == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    [language] = report["languages"]
    assert (language["filled"], language["attempts"]) == (len(SOUND), len(NAMES))
    assert set(language["removed"]) == set(STAGES[1:])
    assert all(language["removed"].values())
    heuristics = ("repeats itself", "too short", "too long", "a copy of the source")
    assert language["removed"]["heuristics"] == dict.fromkeys(heuristics, 1)
    assert language["removed"]["judge"] == {"DIFFERENT": 1, "neither SAME nor DIFFERENT": 1}
    assert report["requests"]["judge"] == len(SOUND) + 1 + 4  # three retries for the vague one


def test_languages_together_share_their_questions(source, tmp_path):
    with served(stand_in_chat(Served())) as url:
        assert curate(source, tmp_path / "run", url, "translations.together=True") == 0
    rows = json_lines(tmp_path / "run" / "questions.jsonl")
    assert set(collections.Counter(row["id"] for row in rows).values()) == {3}
    assert len(rows) == 15


def killed(line, stopped):
    """Runs a command line in a process of its own, which `stopped` kills when it calls the function it is given."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    process = subprocess.Popen([sys.executable, "-c", AS_HERE, *line], cwd=ROOT, env=environment)
    stopped.append(process.kill)
    assert process.wait(600) == -signal.SIGKILL


def interrupted(line, stopped):
    """Runs a command line in this process, which gets a Ctrl-C."""
    stopped.append(lambda: os.kill(os.getpid(), signal.SIGINT))
    gin.clear_config()
    assert main.run(line) == 130


@pytest.mark.parametrize("run_until", [interrupted, pytest.param(killed, marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_and_pays_for_nothing_twice(run_until, source, tmp_path, finished):
    output, stopped, in_flight, killed_at = tmp_path / "run", [], 3, 14

    def stop(number):
        if number == killed_at:
            stopped[0]()

    with served(stand_in_chat(chat := Served(before=stop))) as url:
        run_until(words(source, output, url, f"EndpointModel.in_flight={in_flight}"), stopped)
        kept = {row["key"] for row in json_lines(output / "requests.jsonl")}
        assert len(kept) >= killed_at - 2 * in_flight
        assert not (output / "questions.jsonl").exists()
        with (output / "requests.jsonl").open("a") as file:
            file.write('{"key": "torn')
        assert curate(source, output, url, "EndpointModel.in_flight=8") == 0
    whole = json_lines(output / "requests.jsonl")
    assert len({row["key"] for row in whole}) == len(whole)
    # Only what was in flight, of the translator and of the judge, is asked again, and nothing that was written.
    assert chat.prompts.total() - len(whole) <= 2 * in_flight
    again = [prompt for prompt, count in chat.prompts.items() if count > 1 and "<input>" in prompt]
    assert not kept & {ModelRequest(role="translator", prompt=each, max_tokens=2048).key("strong") for each in again}
    expected, made = results(finished), results(output)
    for name in ("requests", "questions.jsonl", "attempts.jsonl", "report.json"):
        assert made[name] == expected[name]


def test_a_finished_run_asks_nothing_and_is_not_mixed_with_another(source, finished, capsys):
    before = results(finished)
    assert curate(source, finished, NOWHERE, "EndpointModel.seconds=1.0") == 0
    assert results(finished)["questions.jsonl"] == before["questions.jsonl"]
    assert results(finished)["requests"] == before["requests"]
    assert curate(source, finished, NOWHERE, "translator/EndpointModel.model='other'") == 2
    assert "translator/EndpointModel.model" in capsys.readouterr().err


def test_an_endpoint_that_goes_down_is_one_line_and_loses_nothing(source, tmp_path, finished, capsys):
    output = tmp_path / "run"
    with served(stand_in_chat(chat := Served(before=lambda number: 503 if number > 10 else None))) as url:
        assert curate(source, output, url, "EndpointModel.in_flight=3") == 2
    assert_mistake(capsys, "does not answer")
    assert len(json_lines(output / "requests.jsonl")) == 10
    assert chat.prompts.total() <= 10 + 3 + 3  # those of the translator and of the judge that were in flight
    with served(stand_in_chat(chat := Served())) as url:
        assert curate(source, output, url) == 0
    rows = json_lines(output / "requests.jsonl")
    assert chat.prompts.total() == len(rows) - 10
    assert results(output)["questions.jsonl"] == results(finished)["questions.jsonl"]


@pytest.mark.parametrize(
    ("bindings", "clue"),
    [
        (("translations.attempts=0",), "translations.attempts"),
        (("translations.translator=None",), "translations.translator"),
        (("Thresholds.copy=2.0", "translations.thresholds=@Thresholds()"), "Thresholds.copy"),
        (("translations.places=@tier_places()", "LANGUAGES=('am',)", "tier_places.quotas={'high': 2}"), "tier low"),
    ],
)
def test_settings_that_cannot_be_are_refused(bindings, clue, source, tmp_path, capsys):
    assert curate(source, tmp_path / "run", NOWHERE, *bindings) == 2
    assert clue in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_constructed_languages_need_no_model(source, tmp_path):
    gin.clear_config()
    line = ["curate", "translations", "--gin_file=translate_r1/pipeline_constructed.gin"]
    line += [f"--output_dir={tmp_path / 'run'}", f"--gin.source/jsonl_questions.files=['{source}']"]
    assert main.run([*line, "--gin.translations.places=4"]) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [(each["language"], each["filled"]) for each in report["languages"]] == [("en", 4), ("qki", 4), ("qto", 4)]
    assert report["requests"] == {}
    assert report["languages"][1]["chrf"] == 1.0
    rows = json_lines(tmp_path / "run" / "questions.jsonl")
    assert {row["extra"]["tier"] for row in rows if row["language"] != "en"} == {"synthetic"}


def test_a_checkpoint_on_this_machine_that_cannot_translate(source, tmp_path):
    """Through the sampler; a policy that knows nothing says nothing between tags."""
    tokenizer = load_tokenizer(TOKENIZER)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, layers=1, max_positions=4096)
    params = initialise(config, jax.random.key(0))
    save_hugging_face(tmp_path / "policy", config, params, eos_ids=tokenizer.eos_ids)
    tokenizer.backend.save(str(tmp_path / "policy" / "tokenizer.json"))
    gin.clear_config()
    line = ["curate", "translations", "--gin_file=translate_r1/pipeline.gin", f"--output_dir={tmp_path / 'run'}"]
    given = (f"source/jsonl_questions.files=['{source}']", f"local_model.folder='{tmp_path / 'policy'}'")
    sizes = ("local_model.mesh=@one_device()", "local_model.context=700", "local_model.slots=2")
    short = ("translations.places=1", "translations.attempts=1", "LANGUAGES=('am',)")
    short += ("translations.translator=@CompleterModel()", "translations.judge=None")
    assert main.run([*line, *(f"--gin.{each}" for each in (*given, *sizes, *short))]) == 2
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["languages"][0]["removed"]["forward translation"] == {"no output": 1}
    assert report["requests"] == {"translator": 1}
