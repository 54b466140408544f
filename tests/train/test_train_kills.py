"""A run that SIGKILL ends anywhere, and that the same command continues, leaves what an unbroken run leaves.

At staleness 0 and 1; above, what a run learns from depends on time.
"""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time

import experiment_parts
import pytest
from experiment_parts import assert_same_bits, measured, run, saved_state, written_episodes

# A reference policy, mini-batches and a schedule: everything that could forget where it was.
BINDINGS = (
    "train.episodes_every=1",
    "train.checkpoint_every=2",
    "train.updates_per_rollout=2",
    "PolicyGradient.kl_coefficient=0.01",
    "adamw.warmup_share=0.5",
    "STEPS=6",
    "held_out/atlas_questions.languages=('en', 'fi')",
)


AHEAD = ("train.staleness=1", "PolicyGradient.importance_cap=2.0")


def results_of(folder):
    files = {path.name: path.read_bytes() for path in (folder / "answers").glob("*.jsonl")}
    files["policy"] = (folder / "policy" / "model.safetensors").read_bytes()
    episodes = {path.stem: written_episodes(folder, path.stem) for path in (folder / "episodes").iterdir()}
    rows = json.loads((folder / "evaluation.json").read_text())["rows"]
    return files, episodes, measured(folder), [row for row in rows if "seconds" not in row["metric"]]


def assert_same(folder, unbroken):
    found, expected = results_of(folder), results_of(unbroken)
    assert found == expected
    files, episodes, metrics, _ = expected
    assert len(files) > 1
    assert all(row["tokens"]["ids"] for rows in episodes.values() for row in rows)
    assert_same_steps(folder, unbroken, len(metrics))


def assert_same_steps(folder, unbroken, steps):
    assert measured(folder) == measured(unbroken)
    assert len(measured(folder)) == steps
    assert_same_bits(saved_state(folder, steps), saved_state(unbroken, steps))
    assert not list(folder.rglob("*tmp*"))


class Killed(BaseException):
    """Ends a run whose folder has been copied."""


def killed_at(function, call, killed, monkeypatch, tiny, bindings, *, ends):
    """Copies the folder of a run before a call of a function: exactly what SIGKILL leaves at that moment.

    Returns the folder of the run, which ends there or goes on.
    """
    owner, _, name = function.rpartition(".")
    original, calls = getattr(importlib.import_module(owner), name), itertools.count(1)
    output = killed.with_name("whole")

    def copying(*arguments, **options):
        if next(calls) == call:
            shutil.copytree(output, killed, copy_function=copy_if_there)
            if ends:
                raise Killed
        return original(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed) if ends else contextlib.nullcontext():
        patch.setattr(function, copying)
        assert run("train", tiny, *bindings, output=output) == 0
    return output


def copy_if_there(source, target):
    """A file that another thread has renamed meanwhile is one that was not renamed yet."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def test_a_kill_while_answers_are_written(finished, tiny, tmp_path, monkeypatch):
    """While those of the first evaluation take their place."""
    bindings, killed = ("STEPS=2", "train.checkpoint_every=1"), tmp_path / "killed"
    killed_at("os.replace", 5, killed, monkeypatch, tiny, bindings, ends=True)
    assert list(killed.rglob("*tmp*"))
    assert not (killed / "metrics.jsonl").exists()
    assert run("train", tiny, *bindings, output=killed) == 0
    assert_same(killed, finished)


def test_a_kill_while_a_checkpoint_is_completed_and_sampling_runs_ahead(tiny, tmp_path, monkeypatch):
    bindings = ("STEPS=3", "train.checkpoint_every=1", "train.evaluation=None", *AHEAD)
    killed = tmp_path / "killed"
    manifest = "lcrag.learning.checkpoints.write_manifest"
    whole = killed_at(manifest, 2, killed, monkeypatch, tiny, bindings, ends=False)
    assert not (killed / "policy").exists()
    assert run("train", tiny, *bindings, output=killed) == 0
    assert_same_steps(killed, whole, 3)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), AHEAD], ids=["staleness_0", "staleness_1"])
def test_kills_at_any_moment_change_nothing(tiny, tmp_path, monkeypatch, more, runs=5, kills=5):
    """Children are forked from a process that has imported the package; each is killed after a random time."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    context, generator = multiprocessing.get_context("forkserver"), random.Random(0)
    context.set_forkserver_preload(["experiment_parts", "lcrag.train.rl"])

    def live(output, seconds=None):
        words = ("train", tiny, *BINDINGS, *more)
        child = context.Process(target=experiment_parts.run, args=words, kwargs={"output": output})
        child.start()
        child.join(seconds)
        child.kill()
        child.join()
        return child.exitcode

    started = time.monotonic()
    assert live(tmp_path / "unbroken") == 0
    longest = time.monotonic() - started  # later runs, whose programs are compiled, may end before they are killed
    killed = 0
    for output in (tmp_path / f"run_{number}" for number in range(runs)):
        killed += [live(output, generator.uniform(0, longest)) for _ in range(kills)].count(-signal.SIGKILL)
        assert live(output) == 0
        assert_same(output, tmp_path / "unbroken")
    assert killed
