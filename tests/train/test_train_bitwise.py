"""In the bitwise mode, a training run gives sampled tokens the log-probabilities that they were sampled with."""

from experiment_parts import json_lines, run

BINDINGS = ("STEPS=2", "train.evaluation=None", "adamw.learning_rate=1e-3", "Computation.bitwise=True")
BINDINGS += ("language_coupled.weight=1.0", "language_coupled.floor=None")  # no answer is right, but penalties differ


def test_the_gap_is_exactly_zero(tiny, tmp_path):
    assert run("train", tiny, *BINDINGS, output=tmp_path / "run") == 0
    metrics = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [record["sampling_training_gap"] for record in metrics] == [0.0, 0.0]
    assert metrics[0]["gradient_norm"] > 0
