"""Translate-R1 by gin: a step with every part, a missing translator, a served one; translation with search."""

import dataclasses

import gin
import pytest
from experiment_parts import changed, json_lines, run
from fastapi.testclient import TestClient

from lcrag import main
from lcrag.atlas import build_world
from lcrag.commands.studies import TRANSLATE_R1 as VARIANTS
from lcrag.commands.studies import WITH_SEARCH
from lcrag.data.constructed import substitution, vocabulary_of
from lcrag.methods.translate_r1.oracles import TranslatingSearcher

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


@pytest.mark.parametrize(
    ("files", "bindings", "clue"),
    [
        (FILES[:1], (), "gin/translator"),
        (FILES, ("Method.samples=4",), "cost.minimum_native_correct"),
        (FILES, ("translate_r1.targets=('en', 'xx')",), "no language 'xx'"),
    ],
)
def test_mistakes_are_said_before_the_folder_is_claimed(files, bindings, clue, tiny, tmp_path, capfd):
    assert run("train", tiny, *SIZES, *bindings, gin_files=files, output=tmp_path / "run") == 2
    error = capfd.readouterr().err
    assert error.startswith("lcrag: error: ")
    assert clue in error
    assert not (tmp_path / "run").exists()


def test_without_the_tool_no_translator_is_needed(tiny, tmp_path):
    none = changed(VARIANTS["no_tool"])
    assert run("train", tiny, *SIZES, *none, gin_files=FILES[:1], output=tmp_path / "none") == 0


def test_a_translator_is_served_alone(monkeypatch, capsys, tmp_path):
    answers = []

    def ask(application, listener, longest):
        with TestClient(application) as client:
            body = {"texts": ["Vok", "3 + 4"], "target": "en"}
            answers.extend([client.post("/translate", json=body).json(), client.get("/healthz").json(), longest])
            answers.append(client.post("/retrieve", json={"queries": ["who"]}).json()["detail"])

    monkeypatch.setattr("lcrag.commands.serve.run_until_stopped", ask)
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


SEARCH, SEARCH_SFT = "translate_r1/with_search_atlas.gin", "translate_r1/with_search_atlas_sft.gin"
ABLATION = changed(WITH_SEARCH["search_alone"])
ABLATION_SFT = tuple(each.replace(" = ", "=", 1) for each in WITH_SEARCH["search_alone"].sft_bindings)
SEARCH_SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=4",
    "train/atlas_questions.copyable=True",
    "held_out/atlas_questions.limit=1",
    "translate_and_search.observation_tokens=48",
)


def test_the_player_has_questions_translated_and_then_searches():
    english = build_world(0).questions("train", ("en",), (1,), True)[0]
    table = substitution("qki", vocabulary_of([english.text]))
    asked = dataclasses.replace(english, language="qki", text=table.constructed(english.text))
    opening = ("environment", asked.text)
    always, never = TranslatingSearcher(calls=1.0), TranslatingSearcher(calls=0.0)
    called = always.next_text(asked, [opening])
    assert called.startswith('<tool_call>{"name":"translate"')
    assert asked.text in called
    told = ("environment", f"<tool_response>\n{english.text}\n</tool_response>\n")
    assert always.next_text(asked, [opening, ("policy", called), told]) == f"<search> {english.extra['query']}</search>"
    # Without a call it answers unknown to what it cannot read.
    searched = never.next_text(asked, [opening])
    assert searched == f"<search> {asked.text}</search>"
    turns = [opening, ("policy", searched), ("environment", "<information>\n\n</information>\n")]
    assert never.next_text(asked, turns) == "<answer> unknown</answer>"
    assert never.next_text(english, [("environment", english.text)]) == f"<search> {english.extra['query']}</search>"


@pytest.mark.parametrize("ablation", [(), ABLATION])
def test_a_step_of_translation_and_search(tiny, tmp_path, ablation):
    assert run("train", tiny, *SEARCH_SIZES, *ablation, gin_files=(SEARCH,), output=tmp_path / "run") == 0
    [measured] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/c3_recall", "reward/task", "reward/cost", "episode/tool_calls", "episode/searches"} <= set(measured)
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episodes) == 32
    assert {episode["language"] for episode in episodes} <= {"en", "fr", "fi", "qki"}
    assert len({episode["group"] for episode in episodes}) == 4


@pytest.mark.parametrize("ablation", [(), (*ABLATION, *ABLATION_SFT)])
def test_the_cold_start_of_translation_and_search(tiny, tmp_path, ablation):
    bindings = (
        "SFT_STEPS=1",
        "sft.rows_per_step=12",
        "sft.collections=@exact_collections()",
        "train/oracle_demonstrations.count=48",
        "validation/oracle_demonstrations.count=4",
        "train/atlas_questions.copyable=True",
        "translate_and_search.observation_tokens=200",
    )
    assert run("sft", tiny, *bindings, *ablation, gin_files=(SEARCH_SFT,), output=tmp_path / "run") == 0
    rows = json_lines(tmp_path / "run" / "rows.jsonl")
    texts = ["".join(span["text"] for span in row["spans"] if span["learned"]) for row in rows]
    given = ["".join(span["text"] for span in row["spans"] if not span["learned"]) for row in rows]
    translated = [text for text in texts if "<tool_call>" in text]
    assert bool(translated) is not bool(ablation)
    assert all(text.index("</tool_call>") < text.index("<search>") for text in translated if "<search>" in text)
    assert any("<tool_response>" in text for text in given) is not bool(ablation)
    natural = build_world(0).questions("train", ("en", "fr", "fi"), (1,), True)
    asked = {each.language for each in natural if any(f'"{each.text}"' in text for text in translated)}
    assert asked == (set() if ablation else {"en", "fr", "fi"}), "questions in every language are translated"
