"""GlobalRAG end to end: every reward and count in the metrics, its ablations, and its cold start."""

import json

import gin
import numpy as np
import pytest
from experiment_parts import json_lines, run

from lcrag.config import configure
from lcrag.data.english import english_questions
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.methods.globalrag.plans import with_own_plans
from lcrag.methods.globalrag.rewards import globalrag_reward
from lcrag.models.local import QuestionEncoder
from lcrag.retrieval import load_encoder
from lcrag.train.checks import check_rewarded

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


def trained(tiny, output, *bindings, gin_files=()):
    assert run("train", tiny, *SIZES, *bindings, gin_files=(GIN, *gin_files), output=output) == 0
    return json_lines(output / "metrics.jsonl")[0]


def test_it_trains_and_logs_every_reward_and_count(tiny, tmp_path):
    measured = trained(tiny, tmp_path / "run")
    assert {name for name in measured if name.startswith("reward/")} == {f"reward/{name}" for name in REWARDS}
    assert measured["reward/annealing"] == pytest.approx(0.9890, abs=1e-3)  # 1 / (1 + exp(-.9 * 10 / 2))
    counts = (
        "plan",
        "plan_missing",
        "plan_cyclic",
        "plan_late",
        "missing_sub_answers",
        "malformed_tags",
        "well_formed",
    )
    assert {f"episode/{name}" for name in counts} <= set(measured)
    assert measured["episode/plan"] == 0  # what the tiny policy writes
    assert measured["episode/plan_missing"] == 1
    assert measured["seconds/rewards"] > 0
    assert measured["sampling_training_gap"] <= 1e-4
    (episode, *_) = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert set(episode["rewards"]) == set(REWARDS)
    assert json.dumps(episode)
    assert episode["outcome"]["extra"]["plan_fault"] == "missing"


def configured(*files, variant=None):
    """Hands some files and a variant of them to gin, as a command does."""
    more, bindings = (variant.files, variant.bound()) if variant else ((), ())
    configure((*files, *more), bindings)


def test_an_encoder_that_is_not_there_is_said_before_anything_is_sampled(tiny, tmp_path, capfd):
    bindings = (*SIZES, "question_encoder.folder='nowhere'")
    assert run("train", tiny, *bindings, gin_files=(GIN,), output=tmp_path / "run") == 2
    assert "there is no encoder in nowhere" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_who_only_asks_needs_no_encoder(tiny, tmp_path):
    bindings = (*SIZES[1:], "question_encoder.folder='nowhere'", "held_out/chains/atlas_questions.limit=2")
    assert run("evaluate", tiny, *bindings, gin_files=(GIN,), output=tmp_path / "asked") == 0


def test_questions_of_a_file_without_golden_plans_are_refused(tiny, tmp_path, capfd):
    file = tmp_path / "mine.jsonl"
    rows = [{"id": str(n), "language": "en", "question": f"Who is {n}?", "answers": ["x"]} for n in range(4)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    bindings = (*SIZES, "train.questions=@train/jsonl_questions()", f"train/jsonl_questions.files=('{file}',)")
    assert run("train", tiny, *bindings, gin_files=(GIN,), output=tmp_path / "run") == 2
    assert "a golden plan of every question, and jsonl/0 in en ('Who is 0?') has none" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()  # said before anything is sampled


def test_musique_s_own_plans_need_no_teacher(tmp_path):
    steps = [
        {"question": "Jaws >> director", "answer": "Steven Spielberg"},
        {"question": "Where was #1 born?", "answer": "Cincinnati"},
    ]
    row = {"question": "Where was its director born?", "answer": "Cincinnati", "paragraphs": []}
    rows = [row | {"id": f"2hop__{n}", "question_decomposition": steps} for n in range(4)]
    file = tmp_path / "musique_ans_v1.0_train.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    configured(GIN, "data/musique_golden_plans.gin")
    assert gin.query_parameter("train.questions").config_key[-1] == "lcrag.data.english.english_questions"
    with gin.config_scope("train"):
        questions, plain = (
            english_questions(folder=str(tmp_path)),
            english_questions(folder=str(tmp_path), golden_plans=None),
        )
    reward = globalrag_reward(encoder=np.eye)
    check_rewarded(reward, questions)
    with pytest.raises(UserError, match="needs a golden plan of every question, and musique/2hop__0 in en"):
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
    monkeypatch.setattr("lcrag.curation.oracle_demonstrations.MAX_FRUITLESS", 1)
    correct = "oracle_demonstrations.only_correct=True"
    assert taught(tiny, tmp_path, correct, "sft.collections=@load_collections()") == 2
    assert "the oracle made no demonstration to keep for 24 questions: demonstrate with" in capfd.readouterr().err


def test_the_encoder_embeds_as_queries(tiny):
    folder = tiny / "collections" / "encoder"
    encoder, texts = QuestionEncoder(str(folder)), ["Who is something?", "Where?"]
    assert (encoder(texts) == load_encoder(folder).encode(texts, kind="query")).all()
    assert encoder.hashes == {"encoder": load_encoder(folder).fingerprint()}


def test_a_golden_plan_that_is_none_is_said():
    question = Question(id="1", dataset="d", language="en", text="Who?", answers=("x",), extra={"plan": {}})
    with pytest.raises(
        UserError, match="a golden plan of the questions cannot be used: plan: the plan has no question"
    ):
        with_own_plans([question])
