"""Standard errors, intervals and tests against scipy, loops and simulations; means of systems over runs by hand."""

import numpy as np
import pytest
import scipy.stats
from evaluation_trials import trial
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lcrag.errors import UserError
from lcrag.evaluation import clustered_standard_error, paired_difference
from lcrag.evaluation.scoreboard import Marking, Scoreboard, Trial, point_name, scoreboards
from lcrag.evaluation.significance import crossed_estimate, holm, run_means

SCORES = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12)


@settings(max_examples=50)
@given(SCORES, st.integers(1, 4))
def test_copies_of_a_question_add_nothing_to_the_usual_standard_error(scores, copies):
    values = np.array(scores, float)
    repeated, clusters = np.repeat(values, copies), np.repeat(np.arange(len(values)), copies)
    expected = values.mean(), scipy.stats.sem(values)
    assert clustered_standard_error(repeated, clusters) == pytest.approx(expected, abs=1e-12)


def test_a_single_run_is_tested_as_scipy_does():
    generator = np.random.default_rng(0)
    second = generator.random(50)
    first = second + 0.1 + 0.05 * generator.standard_normal(50)
    expected = scipy.stats.ttest_rel(first, second)
    interval = expected.confidence_interval()
    found = paired_difference(first, second)
    assert found == pytest.approx(((first - second).mean(), interval.low, interval.high, expected.pvalue))
    by_name = paired_difference(np.tile(first, 2), np.tile(second, 2), [f"q{number % 50}" for number in range(100)])
    assert by_name == pytest.approx(found), "a second language of the same answers adds nothing"


def test_what_cannot_be_tested():
    for first, second in (([0.5, 1], [0.5, 1]), ([1, 1], [0, 0])):  # differences that do not vary
        found = paired_difference(first, second)
        assert found.p_value == 1
        assert np.isnan(found.half)
    value, *interval, p_value = paired_difference([1, 0], [0, 0], ["a", "a"])  # a single question
    assert (value, p_value) == (0.5, 1)
    assert np.isnan(interval).all()
    with pytest.raises(ValueError, match="same questions"):
        paired_difference([1, 2], [1])


def estimated(scores, other=None):
    def means(own):
        runs, questions, languages = np.shape(own)
        rows = np.reshape(own, (runs, -1)).astype(float)
        return run_means(rows, np.tile(np.arange(languages), questions), np.repeat(np.arange(questions), languages))

    return crossed_estimate(means(scores), None if other is None else means(other))


def mean_squares(table):
    """Two-way analysis of variance of a table [runs][questions] by loops: the variances of its means."""
    runs, questions = len(table), len(table[0])
    mean = sum(sum(row) for row in table) / (runs * questions)
    by_run = [sum(row) / questions for row in table]
    by_question = [sum(table[r][q] for r in range(runs)) / runs for q in range(questions)]
    rest = sum((table[r][q] - by_run[r] - by_question[q] + mean) ** 2 for r in range(runs) for q in range(questions))
    return (
        sum((each - mean) ** 2 for each in by_question) / (questions - 1) / questions,
        sum((each - mean) ** 2 for each in by_run) / (runs - 1) / runs,
        rest / ((runs - 1) * (questions - 1)) / (runs * questions),
    )


TABLES = arrays(
    float, st.tuples(st.integers(2, 4), st.integers(2, 6), st.integers(1, 3)), elements=st.floats(0, 1, width=16)
)


@settings(max_examples=60)
@given(TABLES)
def test_several_runs_are_an_analysis_of_variance(scores):
    table = scores.mean(axis=2).tolist()
    of_questions, of_runs, of_rest = mean_squares(table)
    variance = max(of_questions + of_runs - of_rest, of_questions, of_runs)
    found = estimated(scores)
    assert found.value == pytest.approx(scores.mean())
    if variance < 1e-12:
        return
    runs, questions = len(table), len(table[0])
    squares = of_questions**2 / (questions - 1) + of_runs**2 / (runs - 1) + of_rest**2 / ((runs - 1) * (questions - 1))
    student = scipy.stats.t(variance**2 / squares)
    assert found.half == pytest.approx(student.ppf(0.975) * variance**0.5)
    assert found.p_value == pytest.approx(2 * student.sf(abs(found.value) / variance**0.5), abs=1e-12)


@settings(max_examples=40)
@given(TABLES, st.integers(0, 9))
def test_swapping_the_sides_negates_and_copies_of_the_languages_change_nothing(scores, seed):
    other = np.random.default_rng(seed).random((3, *scores.shape[1:]))
    found, swapped = estimated(scores, other), estimated(other, scores)
    assert found == pytest.approx((-swapped.value, -swapped.high, -swapped.low, swapped.p_value), nan_ok=True)
    copied = estimated(np.repeat(scores, 2, axis=2), np.repeat(other, 2, axis=2))
    assert copied == pytest.approx(found, nan_ok=True)


def test_answers_without_a_score_have_no_weight():
    """Every language has the same weight, whatever its number of judged answers; questions without one do not count."""
    nan = np.nan
    scores = np.array([[[1, nan], [0, 1], [1, nan], [nan, nan]]])
    found = estimated(scores)
    assert found.value == pytest.approx((2 / 3 + 1) / 2)
    parts = np.array([1 / 3, -2 / 3, 1 / 3]) / 6  # 1 / (2 · 3) times the deviations from 2/3
    assert found.half == pytest.approx(scipy.stats.t(2).ppf(0.975) * np.sqrt(3 * parts.var(ddof=1)))


def test_intervals_of_differences_cover_questions_and_runs(draws=1200, runs=5, questions=40, languages=3):
    """They hold the true value 0 as often as they say, with effects of questions, runs, and both together."""
    generator, held = np.random.default_rng(0), 0

    def drawn(asked):
        seeds, noise = (generator.standard_normal((runs, size, 1)) for size in (1, questions))
        versions = generator.standard_normal((runs, questions, languages))
        return asked[None, :, None] + 0.1 * seeds + 0.2 * noise + 0.3 * versions

    for _ in range(draws):
        asked = 0.35 * generator.standard_normal(questions)
        found = estimated(drawn(asked), drawn(asked + 0.2 * generator.standard_normal(questions)))
        held += found.low <= 0 <= found.high
    assert 0.93 < held / draws < 0.97


def test_holms_correction_by_hand():
    assert holm([0.01, 0.04, float("nan"), 0.03]) == pytest.approx([0.03, 0.06, float("nan"), 0.06], nan_ok=True)


# --- Systems with several runs ---

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
    assert (paired.value, paired.half) == pytest.approx((expected.value, expected.half))
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
    assert board.rivals(Marking(against="b")) == {("m", "a [0.25]"): ("m", "b [0.25]")}
    assert board.rivals(Marking(against="c", references={"b": "a"})) == {("m", "b [0.25]"): ("m", "a [0.25]")}
    assert board.rivals(Marking(against="c")) == board.rivals(Marking()) == {}
    with pytest.raises(UserError, match="a and b .*toy"):
        Scoreboard([trial("a", right), trial("b", {"en": [1, 0], "fi": [1, 0]})])
    assert [point_name(1.0), point_name(0.25), point_name("native only")] == ["1", "0.25", "native only"]
