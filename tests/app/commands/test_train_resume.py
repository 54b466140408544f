"""Stopping and continuing a run changes nothing, bit for bit."""

import random
import shutil
import signal
import time

import numpy as np
import pytest
from experiment_parts import assert_same_bits, contents, json_lines, measured, run, saved_state, written_episodes

from lcrag.app.composition.method import Method
from lcrag.learning.learners import Learner
from lcrag.retrieval import Collections

# A reference policy, mini-batches and a schedule: everything that could forget where it was.
BINDINGS = (
    "train.evaluation=None",
    "train.episodes_every=1",
    "train.checkpoint_every=2",
    "train.updates_per_rollout=2",
    "PolicyGradient.kl_coefficient=0.01",
    "adamw.steps=6",
    "adamw.warmup_share=0.5",
)


def train(tiny, output, steps=6):
    return run("train", tiny, *BINDINGS, f"train.steps={steps}", output=output)


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    output = tmp_path_factory.mktemp("straight") / "run"
    assert train(tiny, output) == 0
    return output


def results_of(folder):
    """The whole train state, every number that is no timing, and every episode."""
    episodes = [written_episodes(folder, f"step_{step}") for step in range(6)]
    return saved_state(folder, 6), measured(folder), episodes


def assert_same(folder, other):
    (leaves, metrics, episodes), (other_leaves, other_metrics, other_episodes) = results_of(folder), results_of(other)
    assert len(leaves) > 20
    assert_same_bits(leaves, other_leaves)
    assert metrics == other_metrics
    assert len(metrics) == 6
    assert episodes == other_episodes


def test_the_run_learns_something(straight, tiny):
    metrics = json_lines(straight / "metrics.jsonl")
    assert max(record["gradient_norm"] for record in metrics) > 0
    assert max(r["loss/kl"] for r in metrics) > 0
    assert all(record["sampling_training_gap"] <= 1e-4 for record in metrics)
    assert (straight / "policy" / "model.safetensors").read_bytes() != (
        tiny / "policy" / "model.safetensors"
    ).read_bytes()


def test_an_interrupted_step_is_done_again(tiny, straight, tmp_path, monkeypatch, capsys):
    """Interrupted in step 3: step 2 came after the last checkpoint and runs again, its record is not doubled."""
    rewards = Method.rewards

    def interrupted(self, records, step):
        if step == 3:
            raise KeyboardInterrupt
        return rewards(self, records, step)

    with monkeypatch.context() as patch:
        patch.setattr(Method, "rewards", interrupted)
        assert train(tiny, tmp_path / "run") == 130
    assert "the same command continues" in capsys.readouterr().err
    assert [record["step"] for record in json_lines(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
    assert train(tiny, tmp_path / "run") == 0
    assert_same(tmp_path / "run", straight)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_last_finished_step(tiny, straight, tmp_path, monkeypatch, capsys, number):
    """SIGTERM in the rollout of step 3, which is abandoned; Ctrl-C in the update of step 2, which is finished."""
    rewards, learn, updated = Method.rewards, Learner.learn, []

    def signalled_rewards(self, records, step):
        if step == 3 and number == signal.SIGTERM:
            signal.raise_signal(number)
        return rewards(self, records, step)

    def signalled_learn(self, trajectories):
        updated.append(None)
        if len(updated) == 3 and number == signal.SIGINT:
            signal.raise_signal(number)
        return learn(self, trajectories)

    with monkeypatch.context() as patch:
        patch.setattr(Method, "rewards", signalled_rewards)
        patch.setattr(Learner, "learn", signalled_learn)
        assert train(tiny, tmp_path / "run") == 128 + number
    assert "the same command continues" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"2", "3"}
    assert [record["step"] for record in json_lines(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
    assert train(tiny, tmp_path / "run") == 0
    assert_same(tmp_path / "run", straight)


def test_slow_searches_change_nothing(tiny, straight, tmp_path, monkeypatch):
    search, delays = Collections.search, random.Random(0)

    def delayed(self, *arguments):
        time.sleep(delays.random() * 0.02)
        return search(self, *arguments)

    monkeypatch.setattr(Collections, "search", delayed)
    assert train(tiny, tmp_path / "run") == 0
    assert_same(tmp_path / "run", straight)


def test_a_finished_run_has_nothing_to_do(tiny, straight):
    before = contents(straight)
    assert train(tiny, straight) == 0
    changed = {path.name for path, content in contents(straight).items() if before.get(path) != content}
    assert all(name in ("run.json", "report.md", "training.png") or "tfevents" in name for name in changed)


def test_a_run_continues_on_another_mesh(tiny, straight, tmp_path):
    """From one device to four: the same questions in the same order, and numbers that differ by rounding only."""
    output = shutil.copytree(straight, tmp_path / "run")
    shutil.rmtree(output / "checkpoints" / "6")
    four = ("policy.mesh=@four_devices()", "Sampler.slots=8", "Sampler.append_rows=(8,)")
    assert run("train", tiny, *BINDINGS, "train.steps=6", *four, output=output) == 0
    found, expected = (written_episodes(each, "step_4") for each in (output, straight))
    asked = ("question_id", "language", "group", "prompt", "turns", "advantage")
    assert [[row[name] for name in asked] for row in found] == [[row[name] for name in asked] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row["tokens"]["ids"] == other["tokens"]["ids"]
        np.testing.assert_allclose(
            row["tokens"]["log_probabilities"], other["tokens"]["log_probabilities"], rtol=0, atol=1e-5
        )
    state, straight_state = saved_state(output, 6), saved_state(straight, 6)
    for name, array in state.items():
        np.testing.assert_allclose(array, straight_state[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert [record["step"] for record in measured(output)] == list(range(6))
