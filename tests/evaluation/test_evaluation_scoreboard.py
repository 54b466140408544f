"""Means over runs and languages by hand, and intervals and tests against scipy."""

import numpy as np
import pytest
import scipy.stats
from evaluation_trials import trial
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrag.errors import UserError
from lcrag.evaluation.scoreboard import Scoreboard, Trial, point_name, scoreboards

ALL = ("", "all")


def test_runs_are_averaged_first_over_inferences_then_over_seeds():
    trials = [
        trial("a", {"en": [1, 1, 0, 0], "fi": [1, 0, 0, 0]}, run="seed 0"),  # .5 and .25
        trial("a", {"en": [1, 1, 1, 1], "fi": [1, 1, 0, 0]}, run="seed 0"),  # 1 and .5
        trial("a", {"en": [0, 0, 0, 0], "fi": [0, 0, 0, 0]}, run="seed 1"),
    ]
    score = Scoreboard(trials).score(("m", "a"), "exact_match", ALL)
    assert score.value == pytest.approx((0.375 + 0.75) / 4)
    assert (score.runs, score.trials) == (2, 3)
    assert (score.low + score.high) / 2 == pytest.approx(score.value)
    alone = Scoreboard(trials[:2]).score(("m", "a"), "exact_match", ALL)
    of_questions = np.array([1, 0.75, 0.25, 0.25])
    assert alone.half == pytest.approx(scipy.stats.t(3).ppf(0.975) * scipy.stats.sem(of_questions))
    assert alone.half < score.half, "another seed is a second source of variance"
    nothing_varies = Scoreboard(trials[2:]).score(("m", "a"), "exact_match", ALL)
    assert np.isnan(nothing_varies.half)
    assert Scoreboard(trials).score(("m", "b"), "exact_match", ALL) is None


def test_a_mean_over_languages_is_that_of_their_means():
    board = Scoreboard([trial("a", {"en": [1, 1, 1, 1, 0], "fi": [0]})])

    def value(part):
        return board.score(("m", "a"), "exact_match", part).value

    assert (value(("", "en")), value(("", "fi")), value(ALL)) == pytest.approx((0.8, 0, 0.4))
    assert (value(("", "seen")), value(("", "zero_shot"))) == pytest.approx((0.8, 0))
    assert value(("odd", "all")) == 1, "a part's is over its questions"
    assert board.languages == (("en",), ("fi",))
    assert board.subsets == ("odd",)


def test_the_order_of_answers_does_not_matter():
    one = trial("a", {"en": [1, 1, 0, 0], "fi": [1, 0, 0, 0]})
    labels = {name: getattr(one, name) for name in ("model", "dataset", "split", "decoding", "seen_languages")}
    other = Trial.of(one.answered[::-1], method="b", run="b", **labels)
    found = Scoreboard([one, other]).difference(("m", "a"), ("m", "b"), "exact_match", ALL)
    assert (found.value, found.p_value) == (0, 1)
    assert Scoreboard([one]).languages == (("en",), ("fi",))
    assert Scoreboard([other]).questions.order == ("fi", "en"), "as they were answered"


scores = st.lists(st.integers(0, 1), min_size=6, max_size=6)


@settings(max_examples=25)
@given(scores, scores, scores, scores)
def test_the_test_is_scipys_over_questions(en, fi, other_en, other_fi):
    board = Scoreboard([trial("a", {"en": en, "fi": fi}), trial("b", {"en": other_en, "fi": other_fi})])
    first, second = np.mean([en, fi], axis=0), np.mean([other_en, other_fi], axis=0)
    found = board.difference(("m", "a"), ("m", "b"), "exact_match", ALL)
    assert found.value == pytest.approx((first - second).mean())
    varies = np.ptp(first - second) > 0
    assert found.p_value == (pytest.approx(scipy.stats.ttest_rel(first, second).pvalue) if varies else 1)


def test_runs_of_the_same_seeds_can_be_paired():
    """A paired difference is the mean of the runs' own differences, with its interval."""
    generator = np.random.default_rng(0)
    base = generator.random((3, 40)) < np.array([[0.2], [0.5], [0.8]])  # what is made for a seed decides most
    better = base | (generator.random((3, 40)) < 0.1)
    trials = [trial("a", {"en": base[s]}, languages=("en",), run=f"a{s}", seed=s) for s in range(3)]
    trials += [trial("b", {"en": better[s]}, languages=("en",), run=f"b{s}", seed=s) for s in (2, 0, 1)]
    alone, paired = (
        Scoreboard(trials, pairing).difference(("m", "b"), ("m", "a"), "exact_match", ALL) for pairing in (False, True)
    )
    assert alone.value == pytest.approx(paired.value) == pytest.approx(better.mean() - base.mean())
    assert paired.half < 0.2 * alone.half
    differences = [trial("d", {"en": better[s] & ~base[s]}, languages=("en",), run=f"d{s}") for s in range(3)]
    expected = Scoreboard(differences).score(("m", "d"), "exact_match", ALL)
    assert (paired.low, paired.high) == pytest.approx((expected.low, expected.high))
    fewer = Scoreboard(trials[:-1], True).difference(("m", "b"), ("m", "a"), "exact_match", ALL)
    assert fewer == Scoreboard(trials[:-1]).difference(("m", "b"), ("m", "a"), "exact_match", ALL), "other seeds"


def test_no_test_between_different_zero_shot_languages():
    right = {"en": [1, 0, 1], "fi": [0, 0, 1]}
    board = Scoreboard([trial("a", right), trial("b", right, seen=("fi",))])
    assert board.difference(("m", "a"), ("m", "b"), "exact_match", ("", "seen")) is None
    assert board.difference(("m", "a"), ("m", "b"), "exact_match", ALL).p_value == 1
    assert board.difference(("m", "a"), ("m", "c"), "exact_match", ALL) is None
    assert board.languages == ((), ("en", "fi")), "trained on are those of every system"


def test_boards_and_points():
    right = {"en": [1], "fi": [1]}
    trials = [trial("a", right, point=0.25), trial("b", right, point=0.25), trial("a", right, dataset="other")]
    boards = scoreboards(trials)
    assert list(boards) == [("toy", "held_out", "greedy"), ("other", "held_out", "greedy")]
    board = boards["toy", "held_out", "greedy"]
    assert board.systems == [("m", "a [0.25]"), ("m", "b [0.25]")]
    assert board.rival(("m", "a [0.25]"), "b") == ("m", "b [0.25]")
    assert board.rival(("m", "a [0.25]"), "c") is None
    with pytest.raises(UserError, match="a and b answered different questions of toy"):
        Scoreboard([trial("a", right), trial("b", {"en": [1, 0], "fi": [1, 0]})])
    assert [point_name(1.0), point_name(0.25), point_name("native only")] == ["1", "0.25", "native only"]
