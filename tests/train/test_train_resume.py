"""Stopping and continuing a run changes nothing, bit for bit."""

import contextlib
import dataclasses
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


def test_the_run_learns_something(straight, tiny):
    metrics = json_lines(straight / "metrics.jsonl")
    assert max(record["gradient_norm"] for record in metrics) > 0
    assert max(r["loss/kl"] for r in metrics) > 0
    assert all(record["sampling_training_gap"] <= 1e-4 for record in metrics)
    assert (straight / "policy" / "model.safetensors").read_bytes() != (
        tiny / "policy" / "model.safetensors"
    ).read_bytes()


def interrupted(method, call):
    """A method that is left by Ctrl-C in one of its calls."""
    calls = itertools.count(1)

    def interrupting(*arguments, **options):
        if next(calls) == call:
            raise KeyboardInterrupt
        return method(*arguments, **options)

    return interrupting


def signalled(method, call, number):
    """A method during one of whose calls a signal comes."""
    calls = itertools.count(1)

    def signalling(*arguments, **options):
        if next(calls) == call:
            signal.raise_signal(number)
        return method(*arguments, **options)

    return signalling


@dataclasses.dataclass
class Stop:
    """How a run ended, and what it left."""

    status: int
    said: str
    checkpoints: set[str]
    steps: list[int]


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    """A run that is stopped three times and finished then, with slow searches; and each of its stops."""
    output, stops, search = tmp_path_factory.mktemp("stopped") / "run", [], Collections.search
    delays = random.Random(0)

    def delayed(self, *arguments):
        time.sleep(delays.random() * 0.02)
        return search(self, *arguments)

    for owner, name, changed in (
        (Method, "score", interrupted(Method.score, 4)),  # in step 3, after the checkpoint of step 2
        (Method, "score", signalled(Method.score, 2, signal.SIGTERM)),  # in the rollout of step 3
        (Learner, "learn", signalled(Learner.learn, 2, signal.SIGINT)),  # in the update of step 4
        (Collections, "search", delayed),
    ):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as errors:
            patch.setattr(Collections, "search", delayed)
            patch.setattr(owner, name, changed)
            status = train(tiny, output)
        saved = {path.name for path in (output / "checkpoints").iterdir()}
        steps = [record["step"] for record in json_lines(output / "metrics.jsonl")]
        stops.append(Stop(status, errors.getvalue(), saved, steps))
    return output, stops


def test_an_interrupted_step_is_not_kept(stopped):
    stop = stopped[1][0]
    assert (stop.status, stop.steps, stop.checkpoints) == (130, [0, 1, 2], {"2"})
    assert "the same command continues" in stop.said


def test_a_signal_abandons_a_rollout_and_saves_the_last_finished_step(stopped):
    stop = stopped[1][1]
    assert (stop.status, stop.steps, stop.checkpoints) == (143, [0, 1, 2], {"2", "3"})
    assert "the same command continues" in stop.said


def test_a_signal_during_an_update_waits_for_its_end(stopped):
    stop = stopped[1][2]
    assert (stop.status, stop.steps, "5" in stop.checkpoints) == (130, [0, 1, 2, 3, 4], True)


def test_stops_and_slow_searches_change_nothing(stopped, straight):
    """Neither the train state, nor any number that is no timing, nor an episode; no record is doubled."""
    folder, stops = stopped
    assert stops[-1].status == 0
    leaves = saved_state(folder, 6)
    assert len(leaves) > 20
    assert_same_bits(leaves, saved_state(straight, 6))
    assert measured(folder) == measured(straight)
    assert len(measured(folder)) == 6
    for step in range(6):
        assert written_episodes(folder, f"step_{step}") == written_episodes(straight, f"step_{step}")


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
    metrics = measured(output)
    assert [record["step"] for record in metrics] == list(range(6))
    assert max(record["sampling_training_gap"] for record in metrics) <= 1e-4
