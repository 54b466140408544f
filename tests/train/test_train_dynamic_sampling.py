"""Dynamic sampling: which groups are sampled, kept and counted, and that a step stays a function of (seed, step)."""

import zlib

import numpy as np
import pytest
from experiment_parts import json_lines, measured, run
from lcrag.train.rollouts import StepBatch
from lcrag.train.scoring import Scored

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Outcome
from lcrag.train.method import Method

BINDINGS = ("train.evaluation=None", "train.episodes_every=1", "train.checkpoint_every=1", "train.questions_per_step=2")


def groups(count, size=3):
    """Coupled questions whose text is their place."""
    return [
        tuple(Question(id=str(n), dataset="d", language=f"l{i}", text=str(n), answers=("a",)) for i in range(size))
        for n in range(count)
    ]


def record_of(question):
    """An episode in which the policy wrote two tokens."""
    return EpisodeRecord(
        question=question,
        prompt="",
        turns=(),
        tokens=np.zeros(3, np.int32),
        by_policy=np.array([False, True, True]),
        log_probabilities=np.zeros(3, np.float32),
        turn=np.zeros(3, np.int32),
        policy_version=0,
        outcome=Outcome(answer=None),
        counts={},
        finished=True,
        episode=0,
    )


def collected(drawn, rollouts, teaching):
    """A batch of groups that are pretended to be sampled: only those of some texts have rewards that differ."""
    batch, asked = StepBatch(drawn, rollouts), []
    while chosen := batch.missing():
        asked.append([group[0].text for group in chosen])
        questions = [question for group in chosen for question in group]
        ids = np.repeat(np.arange(len(chosen)), [len(group) for group in chosen]).astype(np.int32)
        differs = np.array([int(q.text) in teaching and q.language == "l0" for q in questions], np.float32)
        names = tuple(question.coupling for question in questions)
        batch.add(Scored(tuple(map(record_of, questions)), names, ids, {"total": differs}, differs))
        assert batch.episodes == 3 * sum(map(len, asked))
    return batch, asked


def kept(batch):
    return [record.question.text for record, kept in zip(batch.scored().records, batch.kept(), strict=True) if kept]


def test_what_is_missing_is_sampled_in_the_order_drawn():
    batch, asked = collected(groups(12), 3, {0, 3, 5, 6, 7, 8})  # four are wanted
    assert asked == [["0", "1", "2", "3"], ["4", "5"], ["6"]]
    assert kept(batch) == [text for text in "0356" for _ in range(3)]
    assert len(batch.trajectories()) == 12
    assert len(np.unique(batch.scored().group_ids)) == 7
    assert batch.scored().rewards["total"].sum() == 4
    assert batch.measurements() == {
        "dynamic_sampling/rollouts": 3,
        "dynamic_sampling/groups_sampled": 7,
        "dynamic_sampling/groups_kept": 4,
        "dynamic_sampling/episodes_dropped": 9,
        "dynamic_sampling/policy_tokens_dropped": 18,
    }


@pytest.mark.parametrize(
    ("drawn", "rollouts", "teaching", "asked", "learned"),
    [
        (12, 3, range(12), ["0123"], "0123"),  # a full batch needs one rollout
        (8, 2, {2}, ["0123", "456"], "2"),  # the last rollout may leave the batch small
        (4, 1, {1}, ["0123"], "0123"),  # one rollout drops nothing
        (8, 2, set(), ["0123", "4567"], "01234567"),  # nor does a step in which no group teaches anything
    ],
)
def test_rollouts_and_kept_groups(drawn, rollouts, teaching, asked, learned):
    batch, found = collected(groups(drawn), rollouts, teaching)
    assert ["".join(texts) for texts in found] == asked
    assert kept(batch) == [text for text in learned for _ in range(3)]


def teaches(coupling):
    """Whether a group shall have rewards that differ: about every second one."""
    return zlib.crc32(coupling.encode()) % 2 == 1


@pytest.fixture
def differing(monkeypatch):
    """Whether a group's rewards differ is known, whatever is answered."""
    score = Method.scored

    def scored(self, records, rewards):
        found = score(self, records, rewards)
        teaching = np.array([teaches(record.question.coupling) for record in records])
        first = np.isin(np.arange(len(records)), np.unique(found.group_ids, return_index=True)[1])
        total = (teaching & first).astype(np.float32)
        return Scored(found.records, found.groups, found.group_ids, found.rewards | {"total": total}, total)

    monkeypatch.setattr(Method, "scored", scored)


def train(tiny, output, *bindings, steps=2):
    bindings = (*BINDINGS, f"train.steps={steps}", *bindings)
    return run("train", tiny, *bindings, gin_files=("objective/dapo.gin",), output=output)


def test_a_run_accounts_for_what_it_samples_and_resumes(tiny, tmp_path, differing):
    assert train(tiny, tmp_path / "straight") == 0
    metrics = json_lines(tmp_path / "straight" / "metrics.jsonl")
    for step, record in enumerate(metrics):
        episodes = json_lines(tmp_path / "straight" / "episodes" / f"step_{step}.jsonl")
        drawn = {episode["group"] for episode in episodes}
        assert len(drawn) == record["dynamic_sampling/groups_sampled"]
        assert (sum(map(teaches, drawn)) or len(drawn)) == record["dynamic_sampling/groups_kept"]
        assert len(episodes) == 8 * record["dynamic_sampling/groups_sampled"]
        assert len({episode["episode"] for episode in episodes}) == len(episodes)
        assert all(48 * step <= episode["episode"] < 48 * (step + 1) for episode in episodes)
        assert 1 <= record["dynamic_sampling/rollouts"] <= 3
        assert record["loss/kl"] == 0
    assert any(record["dynamic_sampling/rollouts"] > 1 for record in metrics)

    assert train(tiny, tmp_path / "run", steps=1) == 0
    assert train(tiny, tmp_path / "run") == 0
    assert measured(tmp_path / "straight") == measured(tmp_path / "run")


def test_a_table_too_small_to_draw_from(tiny, tmp_path, capsys):
    assert train(tiny, tmp_path / "run", "train.questions_per_step=3") == 2
    assert "a step of 9 questions cannot be drawn from 6" in capsys.readouterr().err


def test_dr_grpo_by_gin(tiny, tmp_path):
    """Advantages without the standard deviation; the loss is a sum over the constant."""
    bindings = (*BINDINGS, "train.steps=1")
    assert run("train", tiny, *bindings, gin_files=("objective/dr_grpo.gin",), output=tmp_path / "run") == 0
    [record] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert np.isfinite(record["loss/policy"])
    assert "dynamic_sampling/rollouts" not in record


def test_a_group_of_one_is_not_without_variance():
    question = groups(1, size=1)[0][0]
    ids, rewards = np.array([0, 1, 1, 2, 2], np.int32), np.array([1, 1, 1, 0, 1], np.float32)
    scored = Scored((record_of(question),) * 5, ("a", "b", "b", "c", "c"), ids, {"total": rewards}, rewards)
    assert scored.without_variance.tolist() == [False, True, True, False, False]
    assert scored.measurements()["groups/without_variance"] == pytest.approx(1 / 3)
