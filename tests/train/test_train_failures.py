"""What ends a run and what must not: mistakes, failing searches, numbers that are not finite, and signals."""

import re
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiment_parts import assert_mistake, contents, json_lines, run, save_tiny_policy
from jax.experimental import multihost_utils

from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.runs.processes import Stopped
from lcrag.train.steps import StepCheckpoints

# --- A user's mistake is one line, and nothing written before is touched ---


@pytest.fixture
def refused(tiny, capfd):
    """Runs a command that must be refused, and gives its one line."""

    def runs(command, *bindings, folder=tiny, **options):
        assert run(command, folder, *bindings, **options) == 2
        error = capfd.readouterr().err
        assert error.startswith("lcrag: error: "), error
        assert error.count("\n") == 1, error
        return error

    return runs


@pytest.mark.parametrize(
    ("bindings", "part"),
    [
        (("Sampler.context=200",), "Layout.row_lengths"),
        (("train.questions_per_step=7",), "a step of 7"),
        (("train.checkpoint_every=0",), "train.checkpoint_every is 0"),
        (("train.max_rollouts=2", "train.critic=@critic/Critic()"), "train.max_rollouts is 2"),
        (("policy.mesh=@mesh()", "Sampler.slots=8"), "Layout.rows is 4 for 8 devices"),
        (("Evaluation.references={'other': 'atlas/long_sft'}",), "atlas/long_sft has another shape"),
        (("Evaluation.references={'before': 'atlas/long_sft'}",), "names 'before'"),
        (("train.seed=-1",), "train.seed is -1"),
        (("policy.mesh=@mesh()", "mesh.devices=0"), ": mesh.devices has a wrong type"),
        (("policy.folder=3",), ": policy.folder has a wrong type"),
    ],
)
def test_impossible_configurations(refused, tmp_path, bindings, part):
    files = ("objective/ppo.gin",) if "critic" in str(bindings) else ()
    assert part in refused("train", *bindings, gin_files=files, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_language_without_a_collection_in_which_only_the_evaluation_asks(refused, tiny, tmp_path):
    shutil.copytree(tiny / "collections", tmp_path / "some")
    shutil.rmtree(tmp_path / "some" / "th")
    error = refused("train", f"load_collections.folder='{tmp_path / 'some'}'", output=tmp_path / "run")
    assert re.search(r"\bth\b.* ar, de, en", error)
    assert not (tmp_path / "run").exists()


def test_the_folder_of_another_run_or_of_none(refused, finished, tmp_path):
    before = contents(finished)
    error = refused("train", "train.checkpoint_every=1", "SEED=1", "BUDGET=1", "STEPS=9", output=finished)
    assert "hierarchical_search.budget is 2 there and 1 here, train.seed is 0 there and 1 here" in error
    assert "STEPS" not in error
    assert "another command than sft" in refused("sft", gin_files=("baselines/sft.gin",), output=finished)
    assert contents(finished) == before
    assert "is not the folder of a run" in refused("report", output=tmp_path)


def test_a_run_continues_with_the_same_content_only(refused, tiny, tmp_path):
    """A policy, questions and collections that are others now, under the same names."""
    parts = {name: shutil.copytree(tiny / name, tmp_path / name) for name in ("policy", "collections")}
    rows = tmp_path / "rows.jsonl"
    text = '{"id": "%s", "language": "en", "question": "Where is %s?", "answers": ["there"]}\n'
    rows.write_text("".join(text % (name, name) for name in "abc"))
    source = ("train.questions=@jsonl_questions()", f"jsonl_questions.files=('{rows}',)")
    bindings = ("train.evaluation=None", "train.steps=1", "Method.coupling='independent'", "Method.samples=2", *source)
    assert run("train", tmp_path, *bindings, output=tmp_path / "run") == 0
    before = contents(tmp_path / "run")
    rows.write_text(rows.read_text().replace("there", "here"))
    save_tiny_policy(parts["policy"], seed=1)
    shutil.rmtree(parts["collections"] / "ar")
    error = refused("train", *bindings, "train.steps=2", folder=tmp_path, output=tmp_path / "run")
    assert "the content of its collection/ar, policy, questions differs" in error
    assert contents(tmp_path / "run") == before


# --- In the middle of a run ---


BINDINGS = ("train.evaluation=None", "train.episodes_every=1")


REWARD = ("Method.reward=@not_finite()", "not_finite.fair=@language_coupled()")


def test_updates_that_are_not_finite_are_skipped_and_counted_and_too_many_in_a_row_halt_the_run(tiny, tmp_path, capsys):
    bindings = (*BINDINGS, *REWARD, "not_finite.steps=(0, 2, 3)", "adamw.weight_decay=0.1", "train.episodes_every=100")
    bindings += ("STEPS=9", "train.max_consecutive_skips=2", "train.checkpoint_every=1")
    for _ in range(2):  # the same command stops at the same place again
        assert run("train", tiny, *bindings, output=tmp_path / "run") == 2
        out, error = capsys.readouterr()
        assert error.splitlines()[-1].startswith("lcrag: error: 2 updates in a row were not finite")
        assert "step_3.jsonl" in error
        assert re.search("step 3: skipped .* 3 ", out)
        metrics = json_lines(tmp_path / "run" / "metrics.jsonl")
        assert [record["update/skipped"] for record in metrics] == [1, 1, 2, 3]
        assert [record["update/non_finite_in_a_row"] for record in metrics] == [1, 0, 1, 2]
        assert [record["loss/policy"] is None for record in metrics] == [True, False, True, True]
    assert all(abs(e["rewards"]["total"]) > 1e38 for e in json_lines(tmp_path / "run" / "episodes" / "step_3.jsonl"))


def test_weights_that_break_in_the_middle_end_the_run_in_one_line(tiny, tmp_path, monkeypatch, capsys):
    learn = Learner.learn

    def breaking(learner, trajectories):
        measured = learn(learner, trajectories)
        broken = jax.tree.map(lambda leaf: leaf * jnp.nan, learner.params)
        learner._policy.state = learner.state.replace(params=broken)
        return measured

    monkeypatch.setattr(Learner, "learn", breaking)
    assert run("train", tiny, *BINDINGS, "STEPS=3", output=tmp_path / "run") == 2
    assert_mistake(capsys, "no episode of this rollout can be scored (the policy gave probabilities that are not")
    assert [record["step"] for record in json_lines(tmp_path / "run" / "metrics.jsonl")] == [0]


# --- Signals: which states are saved ---


class NotedCheckpoints(Checkpoints):
    def __init__(self):
        self.noted = []

    def save(self, step, state, validation_loss=None):
        self.noted.append((step, state, validation_loss))

    def wait(self):
        self.noted.append("complete")


@pytest.fixture
def checkpoints():
    return NotedCheckpoints()


def steps(checkpoints, first=0):
    return StepCheckpoints(checkpoints, lambda: f"state {len(checkpoints.noted)}", first)


@pytest.fixture
def agreements(monkeypatch):
    """Two processes; what this one says, and while it says it for the first time SIGTERM comes to it."""
    said = []

    def gathered(number):
        said.append(int(number))
        if len(said) == 1:
            signal.raise_signal(signal.SIGTERM)
        return np.array([number, 0])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gathered)
    return said


@pytest.mark.parametrize("last", [0, 1])
def test_a_signal_that_comes_while_processes_agree_is_known_after_the_next_step_or_at_the_end(
    checkpoints, agreements, last
):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        for step in range(last + 1):
            saved.finish(step, save=step == 0)
    assert agreements == [0, signal.SIGTERM]
    assert checkpoints.noted[-1] == "complete"
    assert [step for step, *_ in checkpoints.noted[:-1]] == list(range(1, last + 2))


def test_a_signal_to_another_process_ends_this_one_by_the_same(checkpoints, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda number: np.array([number, signal.SIGTERM]))
    with pytest.raises(Stopped) as stopped, steps(checkpoints) as saved:
        saved.finish(0, save=False)
    assert stopped.value.number == signal.SIGTERM
    assert checkpoints.noted == [(1, "state 0", None), "complete"]
