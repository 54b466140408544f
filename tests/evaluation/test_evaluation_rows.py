"""Metrics per question, their rows, and the files they live in."""

import json
import math

import numpy as np
import pytest

from lcrag.errors import UserError
from lcrag.evaluation import Answered, Row, evaluate, mean_over_seeds, question_metrics, read_rows, write_rows

ANSWERED = [
    Answered(
        question_id=str(number),
        dataset="atlas",
        language=language,
        answer=answer,
        golds=golds,
        searches=searches,
        subsets=subsets,
    )
    for number, language, answer, golds, searches, subsets in [
        (0, "en", "the Euro", ("euro",), 1, ("native_holds", "translated")),
        (0, "de", "Euro", ("Euro",), 2, ("native_missing", "translated")),
        (1, "en", "1999", ("1999",), 1, ("native_holds", "copyable")),
        (1, "de", None, ("1999",), 3, ("native_missing", "copyable")),
    ]
]
RUN = dict(method="LcRL", model="tiny", split="held_out", seed=0, seen_languages=("en",))


def find(rows, metric, language="all", split="held_out"):
    return next(row for row in rows if (row.metric, row.language, row.split) == (metric, language, split))


def test_metrics_by_hand():
    metrics = question_metrics(ANSWERED)
    assert metrics["c3_recall"].tolist() == [1, 1, 1, 0]
    assert metrics["exact_match"].tolist() == [0, 1, 1, 0]
    assert metrics["flexible_exact_match"].tolist() == [1, 1, 1, 0]
    assert metrics["c3_recall_bergen"].tolist() == [1, 1, 1, 0]
    assert metrics["squad_exact_match"].tolist() == metrics["squad_accuracy"].tolist() == [1, 1, 1, 0]
    assert metrics["squad_f1"].tolist() == [1, 1, 1, 0]
    assert metrics["answered"].tolist() == [1, 1, 1, 0]
    assert metrics["searches"].tolist() == [1, 2, 1, 3]
    assert np.isnan(metrics["correct_language"]).tolist() == [True, False, True, True]


def test_rows_by_language_group_and_subset():
    rows = evaluate(ANSWERED, **RUN)
    assert find(rows, "c3_recall").value == 0.75
    assert find(rows, "c3_recall", "de").value == 0.5
    assert find(rows, "c3_recall", "seen").count == find(rows, "c3_recall", "zero_shot").count == 2
    assert find(rows, "searches", "all", "held_out/native_missing").value == 2.5
    assert find(rows, "correct_language").count == 1
    assert len({(row.split, row.language, row.metric) for row in rows}) == len(rows)


def test_language_versions_of_a_question_are_one_observation():
    """Means 1 and 1/2 of two questions: clustered error |1 - 1/2| / 2, not that of four independent answers."""
    assert find(evaluate(ANSWERED, **RUN), "c3_recall").standard_error == pytest.approx(0.25)
    assert find(evaluate(ANSWERED, **RUN), "c3_recall", "en").standard_error == 0


def test_rows_survive_the_file(tmp_path):
    rows = evaluate(ANSWERED, **RUN)
    write_rows(tmp_path / "evaluation.json", rows)
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert set(content["rows"][0]) >= {
        "method",
        "model",
        "dataset",
        "split",
        "language",
        "metric",
        "value",
        "count",
        "seed",
    }
    read = read_rows(tmp_path / "evaluation.json")
    assert [repr(row) for row in read] == [repr(row) for row in rows]
    write_rows(tmp_path / "none.json", [])
    assert read_rows(tmp_path / "none.json") == []


def test_mean_over_seeds_keeps_everything_else_apart():
    row = Row(method="a", model="m", dataset="d", split="s", language="all", metric="c", value=0.2, count=10, seed=0)
    other = Row(**{**vars(row), "method": "b"})
    seeds = [row, *(Row(**{**vars(row), "value": value, "seed": seed}) for seed, value in ((1, 0.4), (2, 0.6)))]
    averaged, alone = mean_over_seeds([*seeds, other])
    assert (averaged.value, averaged.count, averaged.seed) == (pytest.approx(0.4), 30, "0,1,2")
    assert averaged.standard_error == pytest.approx(0.2 / math.sqrt(3))
    assert alone == other or math.isnan(alone.standard_error)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "no evaluation"),
        ('{"rows": [', "line 1"),
        ("[]", '"rows"'),
        ('{"rows": [3]}', "row 1"),
        ('{"rows": [{"method": "a"}]}', '"model"'),
        (
            '{"rows": [{"method": "a", "model": "m", "dataset": "d", "split": "s", "language": "l", "metric": "c", '
            '"value": "high", "count": 1, "seed": 0}]}',
            '"value"',
        ),
    ],
)
def test_a_malformed_file_is_one_sentence(tmp_path, content, named):
    path = tmp_path / "evaluation.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_rows(path)
    assert named in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)
