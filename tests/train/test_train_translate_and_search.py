"""Translation and search by gin: the cold start's demonstrations, and a step with and without translation."""

import dataclasses

import pytest
from experiment_parts import changed, json_lines, run

from lcrag.atlas import build_world
from lcrag.commands.study.tables import WITH_SEARCH
from lcrag.data.constructed import substitution, vocabulary_of
from lcrag.methods.translate_r1.oracles import TranslatingSearcher

GIN, SFT = "translate_r1/with_search_atlas.gin", "translate_r1/with_search_atlas_sft.gin"
ABLATION = changed(WITH_SEARCH["search_alone"])
ABLATION_SFT = tuple(each.replace(" = ", "=", 1) for each in WITH_SEARCH["search_alone"].sft_bindings)
SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=4",
    "train/atlas_questions.copyable=True",
    "held_out/atlas_questions.limit=1",
    "translate_and_search.observation_tokens=48",
)


def english_and_kivari():
    english = build_world(0).questions("train", ("en",), (1,), True)[0]
    table = substitution("qki", vocabulary_of([english.text]))
    return english, table


def test_the_player_has_questions_translated_and_then_searches():
    english, table = english_and_kivari()
    asked = dataclasses.replace(english, language="qki", text=table.constructed(english.text))
    always = TranslatingSearcher(calls=1.0)
    called = always.next_text(asked, [("environment", asked.text)])
    assert called.startswith('<tool_call>{"name":"translate"')
    assert asked.text in called
    turns = [("environment", asked.text), ("policy", called)]
    turns.append(("environment", f"<tool_response>\n{english.text}\n</tool_response>\n"))
    assert always.next_text(asked, turns) == f"<search> {english.extra['query']}</search>"


def test_without_a_call_it_answers_unknown_to_what_it_cannot_read():
    english, table = english_and_kivari()
    asked = dataclasses.replace(english, language="qki", text=table.constructed(english.text))
    never = TranslatingSearcher(calls=0.0)
    searched = never.next_text(asked, [("environment", asked.text)])
    assert searched == f"<search> {asked.text}</search>"
    turns = [("environment", asked.text), ("policy", searched), ("environment", "<information>\n\n</information>\n")]
    assert never.next_text(asked, turns) == "<answer> unknown</answer>"
    assert never.next_text(english, [("environment", english.text)]) == f"<search> {english.extra['query']}</search>"


@pytest.mark.parametrize("ablation", [(), ABLATION])
def test_a_step(tiny, tmp_path, ablation):
    assert run("train", tiny, *SIZES, *ablation, gin_files=(GIN,), output=tmp_path / "run") == 0
    [measured] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/c3_recall", "reward/task", "reward/cost", "episode/tool_calls", "episode/searches"} <= set(measured)
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episodes) == 32
    assert {episode["language"] for episode in episodes} <= {"en", "fr", "fi", "qki"}
    assert len({episode["group"] for episode in episodes}) == 4


@pytest.mark.parametrize("ablation", [(), (*ABLATION, *ABLATION_SFT)])
def test_the_cold_start(tiny, tmp_path, ablation):
    bindings = (
        "SFT_STEPS=1",
        "sft.rows_per_step=12",
        "sft.collections=@exact_collections()",
        "train/oracle_demonstrations.count=48",
        "validation/oracle_demonstrations.count=4",
        "train/atlas_questions.copyable=True",
        "translate_and_search.observation_tokens=200",
    )
    assert run("sft", tiny, *bindings, *ablation, gin_files=(SFT,), output=tmp_path / "run") == 0
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
