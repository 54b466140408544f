"""A run that learns adapters: what it samples, keeps, continues from and saves."""

import shutil

import numpy as np
import pytest
from experiment_parts import assert_same_bits, json_lines, run, save_tiny_policy, saved_state

from lcrag.policy import load_hugging_face

BINDINGS = (
    "train.evaluation=None",
    "train.checkpoint_every=1",
    "PolicyGradient.kl_coefficient=0.01",
    "adamw.learning_rate=0.01",
    "adamw.steps=2",
    "Lora.rank=2",
)


def train(folder, output, *bindings, steps=2):
    bindings = (*BINDINGS, f"train.steps={steps}", *bindings)
    return run("train", folder, *bindings, gin_files=("model/lora.gin",), output=output)


@pytest.fixture(scope="module")
def learned(tiny, tmp_path_factory):
    output = tmp_path_factory.mktemp("learned") / "run"
    assert train(tiny, output) == 0
    return output


def test_adapters_are_sampled_with_learned_saved_and_merged_into_the_exported_policy(learned, tiny):
    metrics = json_lines(learned / "metrics.jsonl")
    assert all(record["sampling_training_gap"] <= 1e-4 for record in metrics)
    assert max(record["gradient_norm"] for record in metrics) > 0
    assert metrics[0]["loss/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics[1]["loss/kl"] > 0
    state = saved_state(learned, 2)
    assert not any("kernel" in name or "embedding" in name for name in state)
    (config, before), (after_config, after) = (load_hugging_face(path / "policy") for path in (tiny, learned))
    assert after_config == config
    np.testing.assert_array_equal(after["embedding"], before["embedding"])
    down, up = (state[f"['params']['layers']['mlp']['up']['{name}']"] for name in ("lora_a", "lora_b"))
    expected = before["layers"]["mlp"]["up"]["kernel"] + 32.0 / 2 * down @ up
    assert np.abs(up).max() > 0
    np.testing.assert_allclose(after["layers"]["mlp"]["up"]["kernel"], expected, atol=1e-6)


def test_a_stopped_run_continues_on_the_same_base_only(learned, tiny, tmp_path, capsys):
    own, output, stopped = (tmp_path / name for name in ("own", "run", "stopped"))
    shutil.copytree(tiny, own)
    assert train(own, output, steps=1) == 0
    shutil.copytree(output, stopped)
    assert train(own, output) == 0
    assert_same_bits(saved_state(learned, 2), saved_state(output, 2))

    save_tiny_policy(own / "policy", seed=1)
    assert train(own, stopped) == 2
    assert "its frozen weights are" in capsys.readouterr().err
