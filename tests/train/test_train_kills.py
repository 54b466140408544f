"""A run that SIGKILL ends anywhere, and that the same command continues, leaves what an unbroken run leaves.

At staleness 0 and 1; above, what a run learns from depends on time.
"""

import collections
import contextlib
import importlib
import itertools
import json
import random
import shutil
import signal

import pytest
from experiment_parts import assert_same_bits, measured, run, saved_state, written_episodes
from killed_runs import PHASES, Kill, Lives

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
    """What a run leaves: metrics, episodes with their tokens, answers, evaluation, policy."""
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


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    with Lives(tmp_path_factory.mktemp("lives") / "log") as lives:
        yield lives


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


CALLS = {"folder": 1, "restore": 1, "policy": 1, "retrieval": 8, "rollout": 24, "replace": 24, "fsync": 24}


def random_kills(seed, seconds):
    """Kills that are spread over the phases: every other one at any moment of the run, the others in a phase."""
    generator = random.Random(seed)
    phases = list(PHASES)
    while True:
        generator.shuffle(phases)
        for phase in phases:
            yield Kill(phase="restore", seconds=generator.uniform(0, seconds))
            delay = generator.choice((0.0, generator.uniform(0, 0.3)))
            call = generator.randint(1, CALLS.get(phase, 3))
            yield Kill(phase=phase, call=call, seconds=delay, after=not delay and generator.random() < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), AHEAD], ids=["staleness_0", "staleness_1"])
def test_fifty_kills_anywhere_change_nothing(lives, tiny, tmp_path, capsys, more, kills=50):
    bindings = (*BINDINGS, *more)
    assert lives.run(tiny, tmp_path / "unbroken", bindings) == (0, "between")
    where, runs, output = collections.Counter(), 0, None
    for kill in random_kills(0, seconds=15.0):
        if output is None:
            runs, output = runs + 1, tmp_path / f"run_{runs + 1}"
        status, phase = lives.run(tiny, output, bindings, kill if where.total() < kills else None)
        if status == -signal.SIGKILL:
            where[phase] += 1
            continue
        assert status == 0, (kill, phase)
        assert_same(output, tmp_path / "unbroken")
        output = None
        if where.total() >= kills:
            break
    with capsys.disabled():
        print(f"\n{where.total()} kills in {runs} runs, by phase: {dict(where.most_common())}")
