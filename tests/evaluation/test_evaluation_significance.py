"""Standard errors and paired comparisons against scipy and closed forms."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrag.evaluation import Answered, clustered_standard_error, compare, paired_difference
from lcrag.evaluation.significance import paired_t_test

SCORES = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12)


@settings(max_examples=50)
@given(SCORES)
def test_clusters_of_one_give_the_usual_standard_error(scores):
    values = np.array(scores, float)
    mean, error = clustered_standard_error(values, np.arange(len(values)))
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(scipy.stats.sem(values), abs=1e-12)


@settings(max_examples=50)
@given(SCORES, st.integers(2, 4))
def test_copies_of_a_question_add_nothing(scores, copies):
    values = np.array(scores, float)
    once = clustered_standard_error(values, np.arange(len(values)))
    often = clustered_standard_error(np.repeat(values, copies), np.repeat(np.arange(len(values)), copies))
    assert often == pytest.approx(once, abs=1e-12)


def test_paired_difference_agrees_with_scipy():
    generator = np.random.default_rng(0)
    second = generator.random(50)
    first = second + 0.1 + 0.05 * generator.standard_normal(50)
    result = paired_difference(first, second)
    assert result.p_value == pytest.approx(scipy.stats.ttest_rel(first, second).pvalue)
    assert result.standard_error == pytest.approx(scipy.stats.sem(first - second))
    assert result.interval[0] < result.difference < result.interval[1]
    assert result.interval == pytest.approx((result.difference - 2 * 0.007, result.difference + 2 * 0.007), abs=0.005)
    assert result == paired_difference(first, second)
    assert result.interval != paired_difference(first, second, seed=1).interval


def test_differences_are_averaged_within_clusters_first():
    result = paired_difference([1, 1, 1, 0], [0, 0, 0, 0], clusters=["a", "a", "a", "b"])
    assert (result.difference, result.clusters) == (0.5, 2)


@pytest.mark.parametrize(("first", "second"), [([0.5, 1], [0.5, 1]), ([1, 1], [0, 0]), ([0.3, 0.5], [0.1, 0.3])])
def test_differences_that_do_not_vary_are_not_significant(first, second):
    assert paired_difference(first, second).p_value == 1
    assert paired_t_test(first, second) == 1


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="same questions"):
        paired_difference([1, 2], [1])
    with pytest.raises(ValueError, match="two questions"):
        paired_difference([1], [1])


def test_compare_pairs_by_question_and_language():
    def answers(texts):
        return [
            Answered(question_id=str(i // 2), dataset="d", language="en" if i % 2 else "de", answer=t, golds=("euro",))
            for i, t in enumerate(texts)
        ]

    before, after = answers(["euro", "", "", ""]), answers(["euro", "euro", "euro", ""])
    differences = compare(before, after[::-1], split="test", seen_languages=("en",))
    assert differences[("test", "all"), "c3_recall"].difference == 0.5
    assert differences[("test", "zero_shot"), "c3_recall"].difference == 0.5
    with pytest.raises(ValueError, match="different questions"):
        compare(before, after[1:], split="test", seen_languages=())
