"""What ends a run and what must not: mistakes, failing searches, numbers that are not finite, and signals."""

import re
import shutil
import signal

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiment_parts import (
    assert_mistake,
    contents,
    json_lines,
    run,
    save_tiny_policy,
    words_of,
    written_episodes,
)
from jax.experimental import multihost_utils

from lcrag import main
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.retrieval import Collections
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
        (("policy.folder='nowhere'",), "nowhere"),
        (("Sampler.context=20",), "the context holds 20"),
        (("Sampler.context=200",), "Layout.row_lengths"),
        (("train.questions_per_step=7",), "a step of 7"),
        (("train.checkpoint_every=0",), "train.checkpoint_every is 0"),
        (("train.max_rollouts=2", "train.critic=@critic/Critic()"), "train.max_rollouts is 2"),
        (("train.staleness=1",), "PolicyGradient.importance_cap=2.0"),
        (("Runner.temperature=0.0",), "Runner.temperature is 0.0"),
        (("policy.mesh=@mesh()", "Sampler.slots=8"), "Layout.rows is 4 for 8 devices"),
        (("Evaluation.references={'other': 'atlas/long_sft'}",), "atlas/long_sft has another shape"),
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
    bindings = ("SEED=1", "Runner.temperature=0.5", "BUDGET=1", "Method.coupling='pivot'", "STEPS=9")
    error = refused("train", "train.checkpoint_every=1", *bindings, output=finished)
    for part in (
        "Method.coupling is 'parallel' there and 'pivot' here",
        "train.seed is 0 there and 1 here",
        "Runner.temperature is 1.0",
        "hierarchical_search.budget is 2",
    ):
        assert part in error
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
    originals = contents(tmp_path)
    for change, part in (
        (lambda: rows.write_text(rows.read_text().replace("there", "here")), "questions"),
        (lambda: save_tiny_policy(parts["policy"], seed=1), "policy"),
        (lambda: shutil.rmtree(parts["collections"] / "ar"), "collection/ar"),
    ):
        change()
        error = refused("train", *bindings, "train.steps=2", folder=tmp_path, output=tmp_path / "run")
        assert f"the content of its {part} differs" in error
        assert contents(tmp_path / "run") == before
        for path, content in originals.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("metrics.jsonl", b"3\n"), ("metrics.jsonl", b"\xff\n"), ("run.json", b"3\n"), ("config.gin", b"\xff\n")),
        *(("episodes/step_1.jsonl", b"3\n"), ("evaluation.json", b"\xff\n")),
    ],
)
def test_a_damaged_record_is_one_line_in_every_command(name, content, finished, tiny, tmp_path, capfd):
    output = shutil.copytree(finished, tmp_path / "run")
    with (output / name).open("ab" if name.endswith(".jsonl") else "wb") as file:
        file.write(content)
    commands = [
        ["view", str(output), f"--output={tmp_path / 'view.html'}"],
        ["report", str(output), f"--output_dir={tmp_path / 'tables'}"],
        ["export", str(output), "--to=messages", f"--output_dir={tmp_path / 'messages'}"],
    ]
    if name in ("metrics.jsonl", "run.json", "config.gin"):
        commands.append(words_of("report", tiny, output=output))
        commands.append(words_of("train", tiny, "STEPS=2", "train.checkpoint_every=1", output=output))
    told = 0
    for line in commands:
        gin.clear_config()
        status, error = main.run(line), capfd.readouterr().err
        assert status in (0, 2)
        if status:
            told += 1
            assert error.startswith("lcrag: error: "), error
            assert error.count("\n") == 1, error
            assert str(output) in error, error
    assert told


# --- In the middle of a run ---


FAILED = " The search failed. No passages could be retrieved.\n"
BINDINGS = ("train.evaluation=None", "train.episodes_every=1")
NO_WAIT = ("Runner.retries=@Patience()", "Patience.attempts=3", "Patience.first_wait_seconds=0.0")


def episodes_of(output, steps):
    return [episode for step in range(steps) for episode in written_episodes(output, f"step_{step}")]


def observations(episode):
    """What the environment showed, rethink sentences aside."""
    return [t["text"] for t in episode["turns"] if t["by"] == "environment" and "information" in t["text"]]


def test_a_search_that_keeps_failing_is_counted_marked_and_shown(tiny, tmp_path, monkeypatch, capsys):
    search = Collections.search

    def without_finnish(self, queries, languages, k):
        if "fi" in languages:
            raise ConnectionError("no route to Finland")
        return search(self, queries, languages, k)

    monkeypatch.setattr(Collections, "search", without_finnish)
    assert run("train", tiny, *BINDINGS, *NO_WAIT, "STEPS=3", output=tmp_path / "run") == 0
    captured = capsys.readouterr()
    assert "retrieval failures" in captured.out
    assert "Traceback" not in captured.err
    metrics, episodes = json_lines(tmp_path / "run" / "metrics.jsonl"), episodes_of(tmp_path / "run", 3)
    failures = [episode["outcome"]["counts"]["retrieval_failures"] for episode in episodes]
    assert sum(failures) > 0
    assert 0 in failures
    assert sum(record["episode/retrieval_failures"] for record in metrics) * 8 == pytest.approx(sum(failures))
    for episode, count in zip(episodes, failures, strict=True):
        shown = observations(episode)
        assert sum(FAILED in text for text in shown) == count
        assert len(shown) == episode["outcome"]["counts"]["searches"]
        assert all(text.strip() != "<information>\n</information>" for text in shown)
        assert (episode["rewards"]["total"] is None) == (episode["advantage"] is None) == (count > 0)
    assert sum(record["episode/failed"] for record in metrics) == sum(count > 0 for count in failures)


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


def test_an_impatient_end_and_a_mistake_save_nothing(checkpoints):
    for ending in (KeyboardInterrupt, ValueError):
        with pytest.raises(ending), steps(checkpoints) as saved:
            saved.finish(0, save=False)
            raise ending
    assert not checkpoints.noted


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
