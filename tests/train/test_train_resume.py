"""Stopping and continuing a run changes nothing, bit for bit."""

import contextlib
import io
import itertools
import random
import shutil
import signal
import time

import numpy as np
import pytest
from experiment_parts import assert_same_bits, contents, json_lines, measured, run, saved_state, written_episodes

from lcrag.learning.learners import Learner
from lcrag.retrieval import Collections
from lcrag.train.method import Method

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


def disturbed(method, call, event):
    """A method during one of whose calls something happens."""
    calls = itertools.count(1)

    def disturbing(*arguments, **options):
        if next(calls) == call:
            event()
        return method(*arguments, **options)

    return disturbing


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    """A run that is stopped three times, with slow searches, then finished; (status, message, steps, checkpoints)."""
    output, stops, search = tmp_path_factory.mktemp("stopped") / "run", [], Collections.search
    delays = random.Random(0)

    def delayed(self, *arguments):
        time.sleep(delays.random() * 0.02)
        return search(self, *arguments)

    for owner, name, changed in (
        (Method, "score", disturbed(Method.score, 4, interrupt)),  # in step 3, after the checkpoint of step 2
        (Method, "score", disturbed(Method.score, 2, lambda: signal.raise_signal(signal.SIGTERM))),  # rollout of step 3
        (Learner, "learn", disturbed(Learner.learn, 2, lambda: signal.raise_signal(signal.SIGINT))),  # update of step 4
        (Collections, "search", delayed),
    ):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as errors:
            patch.setattr(Collections, "search", delayed)
            patch.setattr(owner, name, changed)
            status = train(tiny, output)
        saved = {path.name for path in (output / "checkpoints").iterdir()}
        steps = [record["step"] for record in json_lines(output / "metrics.jsonl")]
        stops.append((status, errors.getvalue(), steps, saved))
    return output, stops


def test_a_stop_abandons_a_rollout_or_waits_for_an_update_and_saves_the_last_finished_step(stopped):
    interruption, in_rollout, in_update, _ = stopped[1]
    for status, said, steps, saved in (interruption, in_rollout):
        assert "the same command continues" in said
        assert steps == [0, 1, 2]
        assert (status, saved) in ((130, {"2"}), (143, {"2", "3"}))
    assert (in_update[0], in_update[2], "5" in in_update[3]) == (130, [0, 1, 2, 3, 4], True)


def test_stops_and_slow_searches_change_nothing(stopped, straight):
    """Neither the train state, nor any number that is no timing, nor an episode; no record is doubled."""
    folder, stops = stopped
    assert stops[-1][0] == 0
    leaves = saved_state(folder, 6)
    assert len(leaves) > 20
    assert_same_bits(leaves, saved_state(straight, 6))
    assert measured(folder) == measured(straight)
    assert len(measured(folder)) == 6
    for step in range(6):
        assert written_episodes(folder, f"step_{step}") == written_episodes(straight, f"step_{step}")


def test_a_finished_run_has_learned_something_and_has_nothing_left_to_do(tiny, straight):
    metrics, policies = json_lines(straight / "metrics.jsonl"), [tiny / "policy", straight / "policy"]
    assert max(record["gradient_norm"] for record in metrics) > 0
    assert max(record["loss/kl"] for record in metrics) > 0
    assert all(record["sampling_training_gap"] <= 1e-4 for record in metrics)
    assert len({(policy / "model.safetensors").read_bytes() for policy in policies}) == 2
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
    metrics = measured(output)
    assert [record["step"] for record in metrics] == list(range(6))
    assert max(record["sampling_training_gap"] for record in metrics) <= 1e-4
