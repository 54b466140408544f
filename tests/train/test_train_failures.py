"""What may fail in the middle of a run and must not end it: searches, and numbers that are not finite."""

import jax
import jax.numpy as jnp
import pytest
from experiment_parts import assert_mistake, json_lines, run, written_episodes

from lcrag.learning.learners import Learner
from lcrag.retrieval import Collections

FAILED = " The search failed. No passages could be retrieved.\n"
BINDINGS = ("train.evaluation=None", "train.episodes_every=1")
NO_WAIT = ("Runner.retries=@Retries()", "Retries.backoff_seconds=0.0")


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
        assert_mistake(capsys, "2 updates in a row were not finite", "step_3.jsonl")
        metrics = json_lines(tmp_path / "run" / "metrics.jsonl")
        assert [record["update/skipped"] for record in metrics] == [1, 1, 2, 3]
        assert [record["update/non_finite_in_a_row"] for record in metrics] == [1, 0, 1, 2]
        assert [record["loss/policy"] is None for record in metrics] == [True, False, True, True]
    assert all(e["rewards"]["total"] is None for e in json_lines(tmp_path / "run" / "episodes" / "step_3.jsonl"))


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
