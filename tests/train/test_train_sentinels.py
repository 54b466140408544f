"""Sentinels: what they log, when they stop a run, what they write, and how the run goes on."""

import math

import pytest
from experiment_parts import assert_mistake, json_lines, run
from hypothesis import given
from hypothesis import strategies as st
from lcrag.train.sentinels import NO_LIMITS, WATCHED, Sentinels, broken_limit

from lcrag.composition.gin_files import read_file
from lcrag.errors import UserError

BINDINGS = ("train.evaluation=None", "train.episodes_every=100", "train.checkpoint_every=1", "STEPS=4")
STRICT = ("Sentinels.least={'entropy': 99.0}", "Sentinels.most={}", "Sentinels.patience=3", "Sentinels.shown=2")


def test_what_is_watched_is_always_logged(finished):
    for record in json_lines(finished / "metrics.jsonl"):
        assert record.keys() >= WATCHED.keys()
        assert 0 <= record["episode/repetition"] < 1
        assert 0 <= record["episode/search_rate"] <= 1
        assert record["ratio/tail"] == 0, "one update a rollout is on-policy"


def test_a_broken_limit_stops_the_run_with_a_dump_until_it_is_looser(tiny, tmp_path, capsys):
    output = tmp_path / "run"
    for _ in range(2):  # the same command stops again: the steps in a row are read from the log
        assert run("train", tiny, *BINDINGS, *STRICT, output=output) == 2
        assert_mistake(
            capsys,
            "a sentinel stopped the run at step 2, because entropy was below 99 for 3 steps",
            str(output / "sentinels" / "step_2.txt"),
        )
        assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2]
    written = sorted(path.name for path in (output / "episodes").iterdir())
    assert written == ["extremes_1.jsonl", "step_0.jsonl", "step_2.jsonl"]
    assert 0 < len(json_lines(output / "episodes" / "extremes_1.jsonl")) <= 2  # of the one group
    episodes = json_lines(output / "episodes" / "step_2.jsonl")
    dump = (output / "sentinels" / "step_2.txt").read_text()
    for part in (f"The 2 worst of {len(episodes)} episodes", "[policy]", "golds: ", *WATCHED):
        assert part in dump
    shown = [all(turn["text"].strip() in dump for turn in episode["turns"]) for episode in episodes]
    assert sum(shown) >= 2
    assert run("train", tiny, *BINDINGS, *STRICT, "Sentinels.least={'entropy': 0.0}", output=output) == 0
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least": {"entropyy": 1.0}}, "Sentinels.least names 'entropyy', which no sentinel watches"),
        ({"most": {"reward/total": 1.0}}, "use entropy, ratio/tail"),
        ({"patience": 0}, "Sentinels.patience must be 1 or more"),
    ],
)
def test_impossible_sentinels(settings, message):
    with pytest.raises(UserError, match=message):
        Sentinels(**settings)


LIMITS = Sentinels(least={"entropy": 0.5}, most={"episode/repetition": 0.7}, patience=2)
VALUES = st.sampled_from([0.0, 0.4, 0.6, 0.8, math.nan, None])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=6))
def test_only_the_last_steps_in_a_row_count(values):
    records = [{"entropy": entropy, "episode/repetition": repetition} for entropy, repetition in values]
    low = [entropy is not None and entropy < 0.5 for entropy, _ in values]
    high = [repetition is not None and repetition > 0.7 for _, repetition in values]
    broken = broken_limit(LIMITS, records)
    expected = len(values) >= 2 and (all(low[-2:]) or all(high[-2:]))
    assert (broken is not None) == expected
    if broken is not None:
        assert broken.above == (not all(low[-2:]))
        assert len(broken.values) == 2
    assert broken_limit(NO_LIMITS, records) is None


def test_the_packaged_limits_are_of_what_is_watched():
    (least, most) = (
        next(binding.value for binding in read_file("wiring.gin") if binding.key == f"Sentinels.{side}")
        for side in ("least", "most")
    )
    Sentinels(least=least, most=most)
    assert set(least) | set(most) == set(WATCHED), "every sentinel has a limit"
