"""What a run leaves in its output folder, and what `lcrag evaluate` and `lcrag report` do with one."""

import json
import shutil

import gin
import numpy as np
import pytest
from experiment_parts import contents, json_lines, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.evaluation import read_rows
from lcrag.policy import load_hugging_face, load_tokenizer, log_probabilities

PROMISED = (
    *("reward/total", "reward/c3_recall", "reward/anti_consistency"),
    *("episode/searches", "episode/policy_tokens", "episode/finished", "episode/retrieval_failures"),
    *("loss/policy", "loss/kl", "sampling_training_gap"),
    *("seconds/rollout", "seconds/rewards", "seconds/update", "tokens_per_second/sampled", "slots/occupancy"),
)
WALL_TIME = {
    "rollout": ("append", "decode", "retrieval_wait", "programs"),
    "step": ("rollout", "rewards", "update", "rest"),
}
EPISODE = {"question_id", "dataset", "language", "group", "prompt", "turns", "answer", "outcome", "rewards"}
EPISODE |= {"question", "golds", "advantage", "policy_version", "tokens", "seconds"}
ROW = {"method", "model", "dataset", "split", "language", "metric", "value", "count", "seed"}


def test_metrics_have_the_promised_names(finished):
    records = json_lines(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 1]
    for record in records:
        assert all(isinstance(record[name], int | float) for name in PROMISED)
        assert record["sampling_training_gap"] <= 1e-4
        assert 0 < record["slots/occupancy"] <= 1
        assert record["episode/finished"] == 1
        for whole, parts in WALL_TIME.items():
            assert sum(record[f"seconds/{part}"] for part in parts) == pytest.approx(record[f"seconds/{whole}"])
    assert "Wall time of a training step" in (finished / "report.md").read_text()
    events = EventAccumulator(str(finished)).Reload().Scalars("reward/total")
    np.testing.assert_allclose([event.value for event in events], [record["reward/total"] for record in records])


def test_episodes_say_who_wrote_what(finished):
    shown = []
    for step in (0, 1):
        episodes = json_lines(finished / "episodes" / f"step_{step}.jsonl")
        shown += [turn["text"] for e in episodes for turn in e["turns"] if "<information>" in turn["text"]]
        assert [episode["language"] for episode in episodes] == list(LCRL_TRAINING)
        assert len({episode["group"] for episode in episodes}) == 1
        for episode in episodes:
            assert episode.keys() >= EPISODE
            assert episode["policy_version"] == step
            assert {turn["by"] for turn in episode["turns"]} <= {"policy", "environment"}
            assert episode["rewards"].keys() == {"total", "c3_recall", "anti_consistency"}
            written = "".join(turn["text"] for turn in episode["turns"] if turn["by"] == "policy")
            assert episode["answer"] is None or f"{episode['answer']}</answer>" in written
    assert shown
    assert all(text.rstrip().endswith("</information>") for text in shown)


def test_run_configuration_checkpoints_and_policy_are_there(finished):
    about = json.loads((finished / "run.json").read_text())
    assert about["seed"] == 0
    assert about["packages"]["jax"]
    assert about["devices"]
    assert about["command"][0] == "lcrag"
    assert about["hashes"].keys() >= {"tokenizer", "encoder", *(f"collection/{code}" for code in LCRL_LANGUAGES)}
    config = (finished / "config.gin").read_text()
    for line in ("train.questions_per_step = 1", "BUDGET = 2", "language_coupled.margin = 0.5"):
        assert line in config
    gin.parse_config(config)  # is a configuration itself
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"1", "2"}
    config, params = load_hugging_face(finished / "policy")
    tokens = np.asarray([load_tokenizer(finished / "policy").encode("Where is Chad?")], np.int32)
    assert np.isfinite(log_probabilities(config, params, tokens[:, :-1], tokens[:, 1:])).all()


def test_evaluation_before_and_after(finished):
    rows = json.loads((finished / "evaluation.json").read_text())["rows"]
    assert all(row.keys() >= ROW for row in rows)
    assert {row["method"] for row in rows} == {
        f"{side}, {decoding}" for side in ("before", "after") for decoding in ("sampled", "greedy")
    }
    whole = {row["language"] for row in rows if row["split"] == "held_out"}
    assert whole == {*LCRL_LANGUAGES, "all", "seen", "zero_shot"}
    assert {row["metric"] for row in rows} >= {"c3_recall", "flexible_exact_match", "correct_language", "searches"}
    report = (finished / "report.md").read_text()
    assert "Held-out questions, greedy" in report
    assert "training.png" in report
    assert (finished / "training.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_is_written_again(finished, tiny, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    (output / "report.md").unlink()
    assert run("report", tiny, output=output) == 0
    assert (output / "report.md").read_text() == (finished / "report.md").read_text()
    shutil.rmtree(output / "answers")
    assert run("report", tiny, output=output) == 0
    assert "Held-out questions" not in (output / "report.md").read_text()


def test_several_evaluations_share_a_folder(finished, tiny, tmp_path, capsys):
    output = shutil.copytree(finished, tmp_path / "run")
    assert run("evaluate", tiny, "Evaluation.temperatures={'greedy': 0.0}", output=output) == 0
    before = contents(output)
    old, new = read_rows(finished / "evaluation.json"), read_rows(output / "evaluation.json")
    assert new[: len(old)] == old
    assert {row.method for row in new[len(old) :]} == {"LcRL, greedy"}
    assert "Evaluation.temperatures" in (output / "answers" / "LcRL_config.gin").read_text()
    assert json.loads((output / "answers" / "LcRL_run.json").read_text())["seed"] == 0
    # the same label for something else
    assert run("evaluate", tiny, "hierarchical_search.budget=1", output=output) == 2
    assert "another evaluation called 'LcRL'" in capsys.readouterr().err
    assert contents(output) == before
