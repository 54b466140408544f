"""Training says when no reward varied, and names a probable cause."""

import pytest
from experiment_parts import run
from lcrag.train.step_log import cause_and_mend, run_warning, step_warning, taught_nothing

VARIED = {"groups/without_variance": 0.5, "reward/total": 0.5}
IDLE = {"groups/without_variance": 1.0, "reward/total": 0.0, "episode/answered": 1.0, "entropy": 0.5}


def steps(*records):
    return [{"step": step, **record} for step, record in enumerate(records)]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0, 0.0, 0.0), True), ((0.5, 0.25, 0.25), True), ((0.75, 0.0, 0.0), False), ((0.0, 0.0, 0.0), False)],
)
def test_groups_without_an_advantage_teach_nothing(shares, expected):
    names = ("groups/without_variance", "groups/of_one", "groups/below_floor")
    assert taught_nothing(dict(zip(names, shares, strict=True))) is expected


def test_a_critic_needs_no_group():
    assert not taught_nothing(IDLE | {"critic/gradient_norm": 0.5})


def test_the_first_tenth_and_hundredth_idle_step_in_a_row_is_told():
    told = [n for n in range(1, 200) if step_warning(steps(VARIED, *[IDLE] * n))]
    assert told == [1, 10, 100]
    assert step_warning(steps(IDLE, VARIED)) is None


def test_a_run_is_summed_up():
    assert run_warning(steps(VARIED, VARIED)) is None
    assert run_warning(steps(IDLE, VARIED, IDLE)).startswith("no reward varied in 2 of 3 steps")
    assert run_warning(steps(IDLE, IDLE)).startswith("no reward varied in any of 2 steps, so the policy has learned no")


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        ({"groups/of_one": 1.0}, "Method.samples"),
        ({"groups/below_floor": 0.75}, "Method.min_std"),
        ({"episode/answered": 0.0, "episode/length_stops": 0.9}, "Runner.max_tokens"),
        ({"episode/answered": 0.05, "episode/length_stops": 0.0}, "5% of the episodes answered"),
        ({"entropy": 0.001}, "Runner.temperature"),
        ({}, "every reward is 0"),
        ({"reward/total": 0.4}, "medium difficulty"),
    ],
)
def test_the_cause_is_read_from_the_metrics(change, mend):
    assert mend in cause_and_mend(steps(IDLE | change))


def test_training_says_so_at_the_step_and_at_the_end(tiny, tmp_path, capsys):
    bindings = ("train.evaluation=None", "train.steps=2", "language_coupled.answer='exact_match'")
    assert run("train", tiny, *bindings, "language_coupled.weight=0", output=tmp_path / "run") == 0
    out = capsys.readouterr().out
    assert "step 1: no reward varied within a group in this step; " in out
    assert "no reward varied in any of 2 steps, so the policy has learned nothing; every reward is 0" in out
