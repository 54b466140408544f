"""GlobalRAG end to end: every reward and count in the metrics, its ablations, and its cold start."""

import json

import gin
import numpy as np
import pytest
from experiment_parts import json_lines, run

from lcrag.config import configure
from lcrag.data.english import english_questions
from lcrag.errors import UserError
from lcrag.methods.globalrag.rewards import globalrag_reward
from lcrag.models.completers import QuestionEncoder
from lcrag.retrieval import load_encoder
from lcrag.train.setup import check_rewarded

GIN = "globalrag/atlas.gin"
SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=2",
    "Method.samples=4",
    "Runner.answer_room=16",
    "globalrag.observation_tokens=48",
    "train/one_fact/atlas_questions.copyable=None",
)
REWARDS = ("total", "squad_exact_match", "format", "semantic", "structural", "sub_goal", "annealing", "matches_cut")


def test_it_trains_and_logs_every_reward_and_count(tiny, tmp_path):
    assert run("train", tiny, *SIZES, gin_files=(GIN,), output=tmp_path / "run") == 0
    measured = json_lines(tmp_path / "run" / "metrics.jsonl")[0]
    assert {name for name in measured if name.startswith("reward/")} == {f"reward/{name}" for name in REWARDS}
    assert measured["reward/annealing"] == pytest.approx(0.9890, abs=1e-3)  # 1 / (1 + exp(-.9 * 10 / 2))
    counts = ("plan", "plan_missing", "plan_late", "missing_sub_answers", "malformed_tags", "well_formed")
    assert {f"episode/{name}" for name in counts} <= set(measured)
    assert measured["episode/plan"] == 0  # what the tiny policy writes
    assert measured["episode/plan_missing"] == 1
    assert measured["seconds/rewards"] > 0
    assert measured["sampling_training_gap"] <= 1e-4
    (episode, *_) = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert set(episode["rewards"]) == set(REWARDS)
    assert episode["outcome"]["extra"]["plan_fault"] == "missing"


def test_who_only_evaluates_needs_no_encoder(tiny, tmp_path):
    bindings = (*SIZES[1:], "question_encoder.folder='nowhere'", "held_out/chains/atlas_questions.limit=2")
    assert run("evaluate", tiny, *bindings, gin_files=(GIN,), output=tmp_path / "asked") == 0


def test_a_missing_encoder_or_golden_plan_is_said_before_anything_is_sampled(tiny, tmp_path, capfd):
    file = tmp_path / "mine.jsonl"
    rows = [{"id": str(n), "language": "en", "question": f"Who is {n}?", "answers": ["x"]} for n in range(4)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    of_file = ("train.questions=@train/jsonl_questions()", f"train/jsonl_questions.files=('{file}',)")
    for bindings, said in ((("question_encoder.folder='nowhere'",), "nowhere"), (of_file, "jsonl/0 in en")):
        assert run("train", tiny, *SIZES, *bindings, gin_files=(GIN,), output=tmp_path / "run") == 2
        assert said in capfd.readouterr().err
        assert not (tmp_path / "run").exists()


def test_musique_s_own_plans_need_no_teacher(tmp_path):
    steps = [
        {"question": "Jaws >> director", "answer": "Steven Spielberg"},
        {"question": "Where was #1 born?", "answer": "Cincinnati"},
    ]
    row = {"question": "Where was its director born?", "answer": "Cincinnati", "paragraphs": []}
    rows = [row | {"id": f"2hop__{n}", "question_decomposition": steps} for n in range(4)]
    file = tmp_path / "musique_ans_v1.0_train.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    configure((GIN, "data/musique_golden_plans.gin"), ())
    assert gin.query_parameter("train.questions").config_key[-1] == "lcrag.data.english.english_questions"
    with gin.config_scope("train"):
        questions = english_questions(folder=str(tmp_path))
        plain = english_questions(folder=str(tmp_path), golden_plans=None)
    reward = globalrag_reward(encoder=np.eye)
    check_rewarded(reward, questions)
    with pytest.raises(UserError, match="musique/2hop__0 in en"):
        check_rewarded(reward, plain)


def taught(tiny, tmp_path, *bindings):
    sizes = (
        "SFT_STEPS=1",
        "sft.rows_per_step=4",
        "train/one_fact/atlas_questions.limit=1",
        "train/several_questions.parts=(@train/one_fact/atlas_questions(), @train/chains/atlas_questions())",
        "train/chains/atlas_questions.hops=(2,)",
        "train/chains/atlas_questions.limit=8",
        "OBSERVATION_TOKENS=40",
        "train/oracle_demonstrations.count=12",
        "validation/oracle_demonstrations.questions=@train/several_questions()",
        "validation/oracle_demonstrations.count=4",
    )
    return run("sft", tiny, *sizes, *bindings, gin_files=("globalrag/atlas_sft.gin",), output=tmp_path / "run")


def test_the_cold_start_is_learned_from_an_oracle_that_plans(tiny, tmp_path):
    assert taught(tiny, tmp_path, "sft.collections=@exact_collections()") == 0
    shown = [span for row in json_lines(tmp_path / "run" / "rows.jsonl") for span in row["spans"]]
    learned, given = ("".join(span["text"] for span in shown if span["learned"] is side) for side in (True, False))
    assert "<information>" in given
    assert "<information>" not in learned
    assert "<plan>" in learned
    assert "<subAnswer> #2 =" in learned
    assert "<plan>" not in given


def test_an_oracle_that_finds_nothing_stops(tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("lcrag.curation.rows.MAX_FRUITLESS", 1)
    correct = "oracle_demonstrations.only_correct=True"
    assert taught(tiny, tmp_path, correct, "sft.collections=@load_collections()") == 2
    assert "the oracle made no demonstration to keep" in capfd.readouterr().err


def test_the_encoder_embeds_as_queries(tiny):
    folder = tiny / "collections" / "encoder"
    encoder, texts = QuestionEncoder(str(folder)), ["Who is something?", "Where?"]
    assert (encoder(texts) == load_encoder(folder).encode(texts, kind="query")).all()
    assert encoder.hashes == {"encoder": load_encoder(folder).fingerprint()}
