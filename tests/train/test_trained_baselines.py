"""Baselines trained as in their papers: D-RAG by fine-tuning, StepSearch by rewards of its searches."""

import json

import numpy as np
from experiment_parts import assert_mistake, json_lines, run

from lcrag.atlas import build_world
from lcrag.train.method import Method, values_of


def test_d_rag_is_fine_tuned_on_arguments_and_answers(tiny, tmp_path):
    """A row for the argument of each language that found something, and one for the answer."""
    bindings = ("sft.collections=@load_collections()", "sft.evaluation=None", "SFT_STEPS=1", "sft.rows_per_step=56",
                "sft/d_rag/Layout.rows=2", "sft/d_rag/Layout.row_lengths=(480,)",
                "TRAINING_LANGUAGES=('fi', 'ja')", "train/atlas_questions.limit=2",
                "validation/atlas_questions.limit=1")  # fmt: skip
    assert run("sft", tiny, *bindings, gin_files=("baselines/d_rag_sft.gin",), output=tmp_path / "run") == 0
    rows = [row["spans"] for row in json_lines(tmp_path / "run" / "rows.jsonl")]
    assert len(rows) == 2 * 2 * (13 + 1)
    assert {tuple(span["learned"] for span in spans) for spans in rows} == {(False, True)}
    blocks = [spans[0]["text"].count(":") for spans in rows]
    assert max(blocks) > 10, "an answer is given after the arguments of all languages"
    assert (tmp_path / "run" / "policy" / "model.safetensors").is_file()


def train(tiny, output, questions, *bindings):
    given = ("train.evaluation=None", "STEPS=1", "train.questions=@jsonl_questions()", "Method.coupling='independent'",
             f"jsonl_questions.files=('{questions}',)", "jsonl_questions.dataset='own'", "train.questions_per_step=4",
             "step_search.observation_tokens=48", *bindings)  # fmt: skip
    return run("train", tiny, *given, gin_files=("baselines/step_search.gin",), output=output)


def test_step_search_rewards_searches_where_they_end_and_needs_annotations_and_a_critic(
    tiny, tmp_path, monkeypatch, capsys
):
    passage = build_world(0).passages("en")[0]
    steps = [{"question": "Where is Botswana?", "answer": "Africa", "support": None}]
    row = {"language": "en", "question": "What about it?", "answers": ["Botswana"]}
    extra = {"golden_passages": [passage.text], "decomposition": steps}
    annotated, plain = tmp_path / "annotated.jsonl", tmp_path / "plain.jsonl"
    rows = [row | {"id": str(number), "extra": extra} for number in range(4)]
    annotated.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plain.write_text(json.dumps(row | {"id": "1"}) + "\n", encoding="utf-8")
    scored, set_advantages = [], Method.set_advantages

    def remembering_advantages(self, episodes):
        set_advantages(self, episodes)
        scored.append(episodes)

    monkeypatch.setattr(Method, "set_advantages", remembering_advantages)
    assert train(tiny, tmp_path / "run", annotated) == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/token_f1", "reward/search_keys", "reward/search_steps", "loss/value"} <= measured.keys()
    sums = [float(episode.trajectory().step_rewards.sum()) for episode in scored[0]]
    np.testing.assert_allclose(sums, values_of(scored[0], "search_steps"), atol=1e-6)
    assert measured["update/skipped"] == 0
    capsys.readouterr()
    assert train(tiny, tmp_path / "other", annotated, "train.critic=None", "Method.samples=2") == 2
    assert_mistake(capsys, "critic")
    assert train(tiny, tmp_path / "other", plain, "train.questions_per_step=1") == 2
    assert_mistake(capsys, "step_search_reward", "golden_passages")
