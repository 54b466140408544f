"""Asynchronous training: what a run with staleness 1 samples and learns from, and that stopping it changes nothing."""

import signal

import pytest
from experiment_parts import assert_same_bits, json_lines, measured, run, saved_state, written_episodes

from lcrag.learning.learners import Learner
from lcrag.train.method import Method

STEPS = 4
BINDINGS = (
    "train.staleness=1",
    "train.evaluation=None",
    "train.episodes_every=1",
    "train.checkpoint_every=2",
    "train.updates_per_rollout=2",
    "PolicyGradient.importance_cap=2.0",
    f"adamw.steps={STEPS}",
)


def train(tiny, output, *bindings, steps=STEPS):
    return run("train", tiny, *BINDINGS, f"train.steps={steps}", *bindings, output=output)


@pytest.fixture(scope="module", autouse=True)
def varied():
    """Rewards that differ, whatever is answered."""
    score = Method.score

    def differing(self, records, step):
        found = score(self, records, step)
        for each in found:
            total = float((7 * each.record.episode + len(each.record.tokens)) % 5)
            each.rewards = {**each.rewards, "total": total}
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "score", differing)
        yield


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    output = tmp_path_factory.mktemp("straight") / "run"
    assert train(tiny, output) == 0
    return output


def assert_same(folder, other):
    assert_same_bits(saved_state(folder, STEPS), saved_state(other, STEPS))
    assert measured(folder) == measured(other)
    for step in range(STEPS):
        assert written_episodes(folder, f"step_{step}") == written_episodes(other, f"step_{step}")


def test_each_step_is_sampled_by_the_policy_before_the_last_update(straight):
    records = json_lines(straight / "metrics.jsonl")
    assert [record["staleness/mean"] for record in records] == [0, 1, 1, 1]
    assert [record["staleness/share_1"] for record in records] == [0, 1, 1, 1]
    assert all(0 <= record[f"idle/{who}"] <= 1 for record in records for who in ("sampler", "trainer"))
    rows = [written_episodes(straight, f"step_{step}") for step in range(STEPS)]
    assert [{row["policy_version"] for row in own} for own in rows] == [{0}, {0}, {1}, {2}]
    assert len({row["episode"] for own in rows for row in own}) == sum(map(len, rows))
    assert max(record["gradient_norm"] for record in records) > 0


def test_a_signal_during_a_rollout_or_an_update_changes_nothing(straight, tiny, tmp_path, monkeypatch):
    """SIGTERM while step 1 is sampled and the update of step 0 runs; Ctrl-C in the update of step 2."""
    score, learn, updated = Method.score, Learner.learn, []

    def signalled_score(self, records, step):
        if step == 1:
            signal.raise_signal(signal.SIGTERM)
        return score(self, records, step)

    def signalled_learn(self, trajectories):
        updated.append(None)
        if len(updated) == 2:
            signal.raise_signal(signal.SIGINT)
        return learn(self, trajectories)

    output = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Method, "score", signalled_score)
        assert train(tiny, output) == 128 + signal.SIGTERM
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0]
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "learn", signalled_learn)
        assert train(tiny, output) == 128 + signal.SIGINT
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2]
    assert train(tiny, output) == 0
    assert_same(output, straight)


def test_two_lanes_sample_ahead_and_evaluate_what_was_learned(straight, tiny, tmp_path):
    """The evaluation at the end uses the lanes, which have ended their last rollout."""
    evaluated = "train.evaluation=@Evaluation()", "held_out/atlas_questions.languages=('en', 'fi')"
    output = tmp_path / "run"
    assert train(tiny, output, "Lanes.count=2", *evaluated, steps=2) == 0
    assert (output / "evaluation.json").is_file()
    for step in range(2):
        found, expected = (written_episodes(folder, f"step_{step}") for folder in (output, straight))
        assert [row["episode"] for row in found] == [row["episode"] for row in expected]


def test_sampling_on_devices_of_its_own_changes_nothing(straight, tiny, tmp_path):
    """The same run, trained on the first device and sampled on the second."""
    meshes = ("policy.mesh=@mesh()", "mesh.devices=(0,)", "Lanes.mesh=@sampler/mesh()", "sampler/mesh.devices=(1,)")
    assert train(tiny, tmp_path / "run", *meshes) == 0
    assert_same(tmp_path / "run", straight)


def test_a_failure_of_sampling_ends_the_run(tiny, tmp_path, monkeypatch):
    def failing(self, records, step):
        raise ZeroDivisionError

    monkeypatch.setattr(Method, "score", failing)
    with pytest.raises(ZeroDivisionError):
        train(tiny, tmp_path / "run")
