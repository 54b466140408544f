"""Translate-R1 on the atlas: its cold start's rows, and a step of reinforcement learning on comprehension questions."""

import dataclasses
import json

import gin
import pytest
from experiment_parts import TOKENIZER, json_lines, run
from support import tiny_tokenizer

from lcrag.atlas.comprehension import LANGUAGES, comprehension_questions
from lcrag.curation.rows import RowContext, spans_of
from lcrag.data.constructed import CONSTRUCTED
from lcrag.episodes import Chat
from lcrag.errors import UserError
from lcrag.methods.translate_r1.oracles import comprehension_demonstrations
from lcrag.methods.translate_r1.program import translate_r1
from lcrag.policy import load_tokenizer
from lcrag.retrieval import NoCollections


@pytest.fixture(scope="module")
def row_context():
    return RowContext(
        tokenizer=load_tokenizer(TOKENIZER),
        chat=Chat(),
        longest_tokens=256,
        program=lambda question: translate_r1(question, (), wording="atlas"),
        search=NoCollections().search,
    )


@pytest.fixture(scope="module")
def demonstrated(row_context):
    """Rows of one question of each domain in every language, with and without translation."""
    questions = comprehension_questions("demonstrations", limit=1)
    rows = {calls: comprehension_demonstrations(row_context, questions, calls=calls) for calls in (0.0, 1.0)}
    spans = {calls: [spans_of(row, row_context.tokenizer) for row in made] for calls, made in rows.items()}
    return {calls: list(zip(questions, shown, strict=True)) for calls, shown in spans.items()}


def test_rows_answer_at_once_or_copy_the_question_into_a_call_and_answer_the_english_one(demonstrated):
    for question, (shown, answer) in demonstrated[0.0]:
        assert (shown["learned"], answer["learned"]) == (False, True)
        assert shown["text"] == f"{question.text}\n"
        assert answer["text"].endswith("}<eos>")
        right = f"\\boxed{{{question.answers[0]}}}" in answer["text"]
        assert right or question.language in CONSTRUCTED
    english = {question.id: question.text for question, _ in demonstrated[1.0] if question.language == "en"}
    for question, (shown, call, response, answer) in demonstrated[1.0]:
        content = json.loads(call["text"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
        assert content["arguments"] == {"text": question.text, "target": "en"}
        assert shown["text"] == f"{question.text}\n"
        assert response["text"] == f"<tool_response>\n{english[question.id]}\n</tool_response>\n"
        assert not response["learned"]
        assert answer["text"].endswith(f"\\boxed{{{question.answers[0]}}}<eos>")


def test_an_undecided_row_learns_all_of_a_call_but_that_it_begins(row_context):
    questions = comprehension_questions("demonstrations", limit=20)
    rows = comprehension_demonstrations(row_context, questions, calls=0.0, undecided=0.5)
    undecided = [spans_of(row, row_context.tokenizer) for row in rows[len(questions) :]]
    assert 0.3 < len(undecided) / len(questions) < 0.7
    for shown, call, response, answer in undecided:
        assert [span["learned"] for span in (shown, call, response, answer)] == [False, True, False, True]
        assert shown["text"].endswith("<tool_call>")
        assert call["text"].startswith("{")
        assert call["text"].endswith("</tool_call>")
        assert answer["text"].endswith("}<eos>")
    other = dataclasses.replace(row_context, tokenizer=tiny_tokenizer(), longest_tokens=2000)
    with pytest.raises(UserError, match="<tool_call>"):  # several tokens cannot be hidden
        comprehension_demonstrations(other, questions[:1], calls=1.0, undecided=1.0)


def test_a_step_of_the_cold_start(tiny, tmp_path):
    few = [f"{tier}/comprehension_questions.limit=4" for tier in ("known", "half_known", "constructed", "validation")]
    steps = ("SFT_STEPS=1", "sft.rows_per_step=8")
    files = ("translate_r1/atlas_sft.gin",)
    assert run("sft", tiny, *few, *steps, gin_files=files, output=tmp_path / "sft") == 0
    [measured] = json_lines(tmp_path / "sft" / "metrics.jsonl")
    assert measured["loss/supervised"] > 0
    assert (tmp_path / "sft" / "policy" / "model.safetensors").is_file()


def test_a_step_with_the_gate(tiny, tmp_path):
    bindings = ("STEPS=1", "train.questions_per_step=4", "held_out/comprehension_questions.limit=1")
    assert run("train", tiny, *bindings, gin_files=("translate_r1/atlas.gin",), output=tmp_path / "run") == 0
    [measured] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/domain", "reward/cost", "reward/cost_fired", "episode/tool_calls"} <= set(measured)
    assert measured["sampling_training_gap"] <= 1e-4
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episodes) == 32
    assert len({episode["group"] for episode in episodes}) == 4
    assert {episode["language"] for episode in episodes} <= set(LANGUAGES)
    answers = json_lines(tmp_path / "run" / "answers" / "after_sampled.jsonl")
    assert len(answers) == 2 * len(LANGUAGES)
    assert "comprehension_translator" in gin.operative_config_str()
