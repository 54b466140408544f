"""Translate-R1 by gin: a step with every part, a missing translator, and a served one."""

import gin
import pytest
from experiment_parts import changed, json_lines, run
from fastapi.testclient import TestClient

from lcrag import main
from lcrag.commands.serve import serving
from lcrag.commands.study.tables import TRANSLATE_R1 as VARIANTS

FILES = ("translate_r1/method.gin", "translator/lookup.gin")
SIZES = (
    "train.collections=@NoCollections()",
    "evaluate.collections=@NoCollections()",
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=2",
    "train.questions=@constructed_questions()",
    "constructed_questions.questions=@train/atlas_questions()",
    "constructed_questions.vocabulary=@english_vocabulary()",
    "english_vocabulary.questions=@train/atlas_questions()",
    "TRAINING_LANGUAGES=('en',)",
    "translate_r1.wording='atlas'",
    "cost.reward=@answer_only()",
)


def test_a_step_with_the_gated_cost(tiny, tmp_path):
    assert run("train", tiny, *SIZES, gin_files=FILES, output=tmp_path / "run") == 0
    [measured] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/total", "reward/task", "reward/exact_match", "reward/cost", "reward/cost_fired"} <= set(measured)
    assert {"episode/tool_calls", "episode/tool_errors", "episode/tool_error_unknown_tool"} <= set(measured)
    assert measured["episode/searches"] == 0
    assert measured["sampling_training_gap"] <= 1e-4
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episodes) == 16
    assert len({episode["group"] for episode in episodes}) == 2
    assert {episode["language"] for episode in episodes} <= {"qki", "qto"}
    assert all(episode["outcome"]["extra"] == {"tool_calls": 0} for episode in episodes)
    config = (tmp_path / "run" / "config.gin").read_text()
    assert "PolicyGradient.ratio = 'sequence'" in config
    assert "cost.minimum_native_correct = 6" in config


def test_a_missing_translator_is_said_before_the_folder_is_claimed(tiny, tmp_path, capfd):
    assert run("train", tiny, *SIZES, gin_files=FILES[:1], output=tmp_path / "run") == 2
    said = capfd.readouterr().err
    assert said.startswith("lcrag: error: the program of question atlas/")
    assert "has no translator" in said
    assert "gin/translator" in said
    assert not (tmp_path / "run").exists()
    none = changed(VARIANTS["no_tool"])
    assert run("train", tiny, *SIZES, *none, gin_files=FILES[:1], output=tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("binding", "clue"),
    [
        ("Method.samples=4", "groups have 4 samples, so the gate would never open"),
        ("translate_r1.targets=('en', 'xx')", "no language 'xx'"),
    ],
)
def test_mistakes_are_said_before_the_folder_is_claimed(binding, clue, tiny, tmp_path, capfd):
    assert run("train", tiny, *SIZES, binding, gin_files=FILES, output=tmp_path / "run") == 2
    error = capfd.readouterr().err
    assert error.startswith("lcrag: error: ")
    assert clue in error
    assert not (tmp_path / "run").exists()


def test_a_translator_is_served_alone(monkeypatch, capsys, tmp_path):
    answers = []

    def ask(application, listener, longest):
        with TestClient(application) as client:
            body = {"texts": ["Vok", "3 + 4"], "target": "en"}
            answers.extend([client.post("/translate", json=body).json(), client.get("/healthz").json(), longest])
            answers.append(client.post("/retrieve", json={"queries": ["who"]}).json()["detail"])

    monkeypatch.setattr(serving, "run_until_stopped", ask)
    (tmp_path / "words.txt").write_text("who\nwhere\n")
    gin.clear_config()
    bindings = (
        "serve.translator=@LookUpTranslator()",
        "serve.port=0",
        "serve.collections=None",
        "LookUpTranslator.vocabulary=@english_vocabulary()",
        f"english_vocabulary.file='{tmp_path / 'words.txt'}'",
    )
    assert main.run(["serve", "--gin_file=serve.gin", *(f"--gin.{each}" for each in bindings)]) == 0
    said = capsys.readouterr().out
    assert "translations at http://127.0.0.1:" in said
    assert "/retrieve" not in said
    translated, health, longest, refusal = answers
    assert translated["translations"][1] == {"text": "3 + 4"}
    assert set(translated["translations"][0]) == {"failure"}
    assert health["status"] == "ok"
    assert longest == 300.0
    assert refusal == "the request names no languages and there is no default: there are none"
