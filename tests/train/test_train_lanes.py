"""Lanes of real processes: the number of processes changes nothing, and what ends one of them ends all."""

import signal

import experiment_parts
import pytest
from experiment_parts import json_lines, measured, save_tiny_policy, written_episodes
from test_train_processes import together

PROGRAM = """
import os
import time

import gin
import numpy as np
from experiment_parts import words_of

from lcrag import main
from lcrag.train.rollout import Rollouts
from lcrag.retrieval import Collections

event, *words = words
sample, search, calls = Rollouts.sample, Collections.search, []

@gin.configurable
def lengths():
    return lambda episodes: {"total": np.array([float(len(answer or "")) for answer in episodes.answers])}

def sampled(self, *arguments, **options):
    calls.append(None)
    if process == "1" and len(calls) == 2 and event.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, event))
    return sample(self, *arguments, **options)

def slow(self, *arguments, **options):
    if process == "1" and event == "slow":
        time.sleep(5)
    return search(self, *arguments, **options)

Rollouts.sample, Collections.search = sampled, slow
bindings = "policy.mesh=@mesh()", "mesh.data=-1", "STEPS=3", "train.evaluation=None", "Method.reward=@lengths()"
sys.argv = ["lcrag", *words_of("train", folder, *bindings, *words, output=output)]
sys.exit(main.run())
"""
SIZES = {
    2: ("Lanes.count=2", "Sampler.slots=4", "train.questions_per_step=2"),
    3: ("Lanes.count=3", "Sampler.slots=6", "train.questions_per_step=3"),
    4: ("Lanes.count=4", "Sampler.slots=8", "train.questions_per_step=4"),
}


def trained(tiny, output, *words, lanes, processes, devices=2, event="none"):
    """Trains for three steps, in which an event may befall the second process in the second."""
    words = tiny, output, event, *SIZES[lanes], *words
    return together(output.parent, PROGRAM, *words, processes=processes, devices=devices)


def assert_same_run(one, other):
    """Two runs measured, sampled and learned the same, bit for bit."""
    assert measured(one) == measured(other)
    assert [record["step"] for record in measured(one)] == [0, 1, 2]
    assert written_episodes(one, "step_2") == written_episodes(other, "step_2")
    weights = "policy/model.safetensors"
    assert (one / weights).read_bytes() == (other / weights).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "devices", "processes"),
    [(4, 4, (1, 2, 4)), (3, 2, (1, 2))],
    ids=["even shares", "two lanes in one process, one in the other"],
)
def test_the_number_of_processes_changes_nothing(lanes, devices, processes, tiny, tmp_path):
    outputs = [tmp_path / f"on_{number}" for number in processes]
    for output, number in zip(outputs, processes, strict=True):
        status, errors = trained(tiny, output, lanes=lanes, devices=devices, processes=number)
        assert status == [0] * number, errors
    for output in outputs[1:]:
        assert_same_run(outputs[0], output)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_its_step_and_others_continue(tiny, tmp_path):
    """On as many devices bit for bit; the searches of the second process are slow in the run that is not broken."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, errors = trained(tiny, whole, lanes=2, processes=2, event="slow")
    assert status == [0, 0], errors
    status, errors = trained(tiny, broken, lanes=2, processes=2, event="SIGTERM")
    assert status == [128 + signal.SIGTERM] * 2, errors
    assert {path.name for path in (broken / "checkpoints").iterdir()} == {"2"}
    status, errors = trained(tiny, broken, lanes=2, processes=1)
    assert status == [0], errors
    assert_same_run(whole, broken)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_fewer_continue(tiny, tmp_path):
    """The run goes on with both lanes on one device, which is another mesh.

    The other process is told by its connection, or is aborted by JAX's coordination service.
    """
    output, saving = tmp_path / "run", "train.checkpoint_every=1"
    status, errors = trained(tiny, output, saving, lanes=2, processes=2, event="SIGKILL")
    assert status[1] == -signal.SIGKILL
    assert status[0] in (1, -signal.SIGABRT), errors
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0]
    status, errors = trained(tiny, output, saving, lanes=2, processes=1, devices=1)
    assert status == [0], errors
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("binding", "what"),
    [("policy.folder", "folder of the policy"), ("load_collections.folder", "collection/ar")],
    ids=["weights", "data"],
)
def test_hosts_with_other_files_are_refused(binding, what, tiny, tmp_path, monkeypatch):
    """The second process reads another policy of the same shape, or collections of other passages."""
    other = tmp_path / "other"
    other.mkdir()
    if binding == "policy.folder":
        save_tiny_policy(other, seed=1)
    else:
        monkeypatch.setattr(experiment_parts, "PASSAGES", experiment_parts.PASSAGES - 1)
        experiment_parts.build_tiny_collections(other)
    differing = f"words += [\"{binding}='{other}'\"] * (process == '1')\nsys.argv ="
    words = tiny, tmp_path / "run", "none", *SIZES[2]
    status, errors = together(tmp_path, PROGRAM.replace("sys.argv =", differing), *words)
    assert status == [2, 2], errors
    assert all(f"process 1 reads another {what} than process 0" in error for error in errors), errors
