"""Retrieval metrics against trec_eval's own code."""

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from lcrag.errors import UserError
from lcrag.evaluation.retrieval_metrics import discounted_gain, grades_found, recall, reciprocal_rank, retrieval_rows

PASSAGES = [f"p{number}" for number in range(12)]
RANKINGS = st.lists(st.sampled_from(PASSAGES), unique=True, max_size=12)
JUDGED = st.dictionaries(st.sampled_from(PASSAGES), st.integers(0, 3), min_size=1).filter(lambda own: any(own.values()))
LABELS = {"method": "retrieval", "model": "m", "dataset": "d", "split": "s"}


@given(st.lists(st.tuples(RANKINGS, JUDGED), min_size=1, max_size=4), st.sampled_from([1, 3, 10]))
def test_as_trec_eval_counts(queries, k):
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


def test_rows_by_language_and_together():
    found = [["a", "b"], ["x", "y"], ["c"], []]
    judged = [{"b": 1}, {"x": 1, "z": 1}, {"c": 0}, {"q": 1}]
    rows = retrieval_rows(found, judged, ["fi", "en", "en", "en"], cuts=(1, 2), **LABELS)
    values = {(row.language, row.metric): (row.value, row.count) for row in rows}
    assert values["fi", "recall@1"] == (0.0, 1) and values["fi", "mrr@2"] == (0.5, 1)
    assert values["en", "recall@2"] == (0.25, 2)  # a query without a relevant passage does not count
    assert values["all", "recall@2"] == (0.5, 3)
    assert np.isnan(next(row.standard_error for row in rows if row.language == "fi"))
    assert {row.metric for row in rows} == {"recall@1", "recall@2", "mrr@2", "ndcg@10"}


def test_one_language_has_no_row_of_all():
    rows = retrieval_rows([["a"]], [{"a": 1}], ["fi"], **LABELS)
    assert {row.language for row in rows} == {"fi"} and all(row.value == 1.0 for row in rows)


def test_what_is_found_twice_counts_once():
    grades = grades_found([["a", "a", "b"]], [{"a": 1, "b": 2}], 3)
    np.testing.assert_array_equal(grades, [[1, 2, 0]])


def test_nothing_relevant_is_a_mistake():
    with pytest.raises(UserError, match="no query of d, s"):
        retrieval_rows([["a"]], [{"a": 0}], ["fi"], **LABELS)
