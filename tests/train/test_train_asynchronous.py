"""Asynchronous training: what a run with staleness 1 samples and learns from, and that stopping it changes nothing."""

import signal

import pytest
from experiment_parts import assert_mistake, assert_same_bits, json_lines, measured, run, saved_state, written_episodes
from test_train_processes import together

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


def test_staleness_without_a_correction_is_refused(tiny, tmp_path, capsys):
    assert train(tiny, tmp_path / "run", "PolicyGradient.importance_cap=None") == 2
    assert_mistake(capsys, "train.staleness is 1", "objective/importance_correction.gin")


TOGETHER = """
from experiment_parts import run

from lcrag.errors import UserError
from lcrag.learning.learners import Learner
from lcrag.retrieval import Collections

signal_in, *words = words
learn, calls = Learner.learn, []

def signalled(self, trajectories):
    calls.append(None)
    if str(len(calls)) == signal_in and process == "1":
        signal.raise_signal(signal.SIGTERM)
    return learn(self, trajectories)

def broken(self, queries, languages, k):
    raise UserError("no collection can be read")

Learner.learn = signalled
if signal_in == "never, the search fails" and process == "1":
    Collections.search = broken
sys.exit(run("train", folder, *mesh, "Lanes.count=2", *words, output=output))
"""


def trained(tiny, output, *words, processes, signal_in=0):
    """Trains in real processes, of which the second gets SIGTERM in an update; returns their exit statuses."""
    words = *BINDINGS, "train.steps=3", "train.questions_per_step=2", *words
    status, errors = together(output.parent, TOGETHER, tiny, output, signal_in, *words, processes=processes)
    assert not any("Traceback" in error for error in errors), errors
    return status


@pytest.mark.slow
def test_two_processes_that_sample_ahead_and_are_stopped_learn_what_one_learns(tiny, tmp_path):
    one, two, words = tmp_path / "one", tmp_path / "two", ("PolicyGradient.kl_coefficient=0.01",)
    assert trained(tiny, one, *words, processes=1) == [0]
    assert trained(tiny, two, *words, processes=2, signal_in=2) == [128 + signal.SIGTERM] * 2
    assert [record["step"] for record in json_lines(two / "metrics.jsonl")] == [0, 1]
    assert trained(tiny, two, *words, processes=2) == [0, 0]
    assert [record["staleness/mean"] for record in measured(two)] == [0, 1, 1]
    assert measured(one) == measured(two)
    assert written_episodes(one, "step_2") == written_episodes(two, "step_2")
    weights = "policy/model.safetensors"
    assert (one / weights).read_bytes() == (two / weights).read_bytes()


@pytest.mark.slow
def test_one_lane_of_several_processes_samples_and_learns_in_turn(tiny, tmp_path):
    words = *BINDINGS, "train.steps=1", "Lanes.count=1"
    status, errors = together(tmp_path, TOGETHER, tiny, tmp_path / "run", 0, *words)
    assert status == [2, 2], errors
    assert all("2 processes share one lane" in error for error in errors), errors


@pytest.mark.slow
def test_a_failure_in_one_process_ends_all_with_a_sentence(tiny, tmp_path):
    words = *BINDINGS, "train.questions_per_step=2"
    event = "never, the search fails"
    status, errors = together(tmp_path, TOGETHER, tiny, tmp_path / "run", event, *words)
    assert status == [2, 2], errors
    assert "the rollout failed in process 1, whose error says why" in errors[0]
    assert "no collection can be read" in errors[1]
