"""Standard errors, intervals and tests against scipy, loops and simulations; retrieval metrics against trec_eval."""

import numpy as np
import pytest
import pytrec_eval
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lcrag.errors import UserError
from lcrag.evaluation import clustered_standard_error, paired_difference
from lcrag.evaluation.metrics import discounted_gain, grades_found, recall, reciprocal_rank, retrieval_rows
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
    """The estimate of scores [runs, questions, languages]."""

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


def coverage(compared, draws=1200, runs=5, questions=40, languages=3):
    """How often the interval holds the true value 0, with effects of questions, runs, and both together."""
    generator, held = np.random.default_rng(0), 0

    def drawn(asked):
        seeds, noise = (generator.standard_normal((runs, size, 1)) for size in (1, questions))
        versions = generator.standard_normal((runs, questions, languages))
        return asked[None, :, None] + 0.1 * seeds + 0.2 * noise + 0.3 * versions

    for _ in range(draws):
        asked = 0.35 * generator.standard_normal(questions)
        other = drawn(asked + 0.2 * generator.standard_normal(questions)) if compared else None
        found = estimated(drawn(asked), other)
        held += found.low <= 0 <= found.high
    return held / draws


@pytest.mark.parametrize("compared", [False, True])
def test_intervals_cover_questions_and_runs(compared):
    assert 0.93 < coverage(compared) < 0.97


def test_holms_correction_by_hand():
    assert holm([0.01, 0.04, float("nan"), 0.03]) == pytest.approx([0.03, 0.06, float("nan"), 0.06], nan_ok=True)
    assert holm([0.6, 0.9]) == [1.0, 1.0]


PASSAGES = [f"p{number}" for number in range(12)]
RANKINGS = st.lists(st.sampled_from(PASSAGES), unique=True, max_size=12)
JUDGED = st.dictionaries(st.sampled_from(PASSAGES), st.integers(0, 3), min_size=1).filter(lambda own: any(own.values()))
LABELS = {"method": "retrieval", "model": "m", "dataset": "d", "split": "s"}


@given(st.lists(st.tuples(RANKINGS, JUDGED), min_size=1, max_size=4), st.sampled_from([1, 3, 10]))
def test_retrieval_metrics_are_trec_evals(queries, k):
    found, judged = [list(ranking) for ranking, _ in queries], [own for _, own in queries]
    grades = grades_found(found, judged, 10)
    relevant = np.array([sum(grade > 0 for grade in own.values()) for own in judged])
    measures = {f"recall.{k}", f"ndcg_cut.{k}", "recip_rank"}
    oracle = pytrec_eval.RelevanceEvaluator({str(row): own for row, own in enumerate(judged)}, measures)
    run = {str(row): {p: 100.0 - rank for rank, p in enumerate(ids[:k])} for row, ids in enumerate(found)}
    expected = oracle.evaluate(run)
    for row, ids in enumerate(found):
        wanted = expected.get(str(row)) if ids else None  # trec_eval leaves empty rankings out
        names = {f"recall_{k}": recall(grades, relevant, k), f"ndcg_cut_{k}": discounted_gain(grades, judged, k)}
        for name, values in (names | {"recip_rank": reciprocal_rank(grades, k)}).items():
            np.testing.assert_allclose(values[row], wanted[name] if wanted else 0.0, rtol=1e-6, atol=1e-12)


def test_retrieval_rows_by_language_and_over_all():
    found = [["a", "b"], ["x", "y"], ["c"], []]
    judged = [{"b": 1}, {"x": 1, "z": 1}, {"c": 0}, {"q": 1}]
    rows = retrieval_rows(found, judged, ["fi", "en", "en", "en"], cuts=(1, 2), **LABELS)
    values = {(row.language, row.metric): (row.value, row.count) for row in rows}
    assert values["fi", "recall@1"] == (0.0, 1)
    assert values["fi", "mrr@2"] == (0.5, 1)
    assert values["en", "recall@2"] == (0.25, 2)  # a query without a relevant passage does not count
    assert values["all", "recall@2"] == (0.5, 3)
    assert np.isnan(next(row.standard_error for row in rows if row.language == "fi"))
    assert {row.metric for row in rows} == {"recall@1", "recall@2", "mrr@2", "ndcg@10"}
    assert {row.language for row in retrieval_rows([["a"]], [{"a": 1}], ["fi"], **LABELS)} == {"fi"}
    np.testing.assert_array_equal(grades_found([["a", "a", "b"]], [{"a": 1, "b": 2}], 3), [[1, 2, 0]])
    with pytest.raises(UserError, match="no query of d, s"):
        retrieval_rows([["a"]], [{"a": 0}], ["fi"], **LABELS)
