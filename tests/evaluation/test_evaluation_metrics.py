"""Metrics per question, their rows and files; the rule of the correct-language rate; retrieval against trec_eval."""

import dataclasses
import json
import math

import numpy as np
import pytest
import pytrec_eval
from evaluation_trials import asked
from hypothesis import given
from hypothesis import strategies as st

from lcrag.errors import UserError
from lcrag.evaluation import (
    Row,
    compare,
    correct_language,
    evaluate,
    mean_over_seeds,
    question_metrics,
    read_rows,
    retrieval_rows,
    write_rows,
)
from lcrag.evaluation.metrics import EFFICIENCY, score_per_log_token

ANSWERED = [
    asked(number, language, answer, golds, searches=searches, subsets=subsets)
    for number, language, answer, golds, searches, subsets in [
        (0, "en", "the Euro", ("euro",), 1, ("native_holds", "translated")),
        (0, "de", "Euro", ("Euro",), 2, ("native_missing", "translated")),
        (1, "en", "1999", ("1999",), 1, ("native_holds", "copyable")),
        (1, "de", None, ("1999",), 3, ("native_missing", "copyable")),
    ]
]
RUN = dict(method="LcRL", model="tiny", split="held_out", seed=0, seen_languages=("en",))
ROW = dict(method="a", model="m", dataset="d", split="s", language="l", metric="c", value=0.2, count=10, seed=0)


def find(rows, metric, language="all", split="held_out"):
    return next(row for row in rows if (row.metric, row.language, row.split) == (metric, language, split))


def test_metrics_by_hand():
    metrics = question_metrics(ANSWERED)
    right = ["c3_recall", "flexible_exact_match", "c3_recall_bergen", "squad_exact_match", "squad_accuracy", "squad_f1"]
    assert {tuple(metrics[name].tolist()) for name in (*right, "answered")} == {(1, 1, 1, 0)}
    assert metrics["exact_match"].tolist() == [0, 1, 1, 0]
    assert metrics["searches"].tolist() == [1, 2, 1, 3]
    assert np.isnan(metrics["correct_language"]).tolist() == [True, False, True, True]


def test_answers_with_a_call_and_with_two():
    calling = [
        dataclasses.replace(each, tool_calls=calls) for each, calls in zip(ANSWERED, (0, 1, 2, None), strict=True)
    ]
    metrics = question_metrics(calling)
    assert metrics["tool_rate"][:3].tolist() == [0, 1, 1]
    assert metrics["two_call_rate"][:3].tolist() == [0, 0, 1]
    assert np.isnan(metrics["two_call_rate"][3])


def test_the_f1_of_a_script_without_spaces_counts_characters():
    metrics = question_metrics([asked(0, answer="天气很好", golds=("天气好",))])
    assert metrics["squad_f1"].tolist() == [0]
    assert metrics["mixed_f1"].tolist() == pytest.approx([6 / 7])


def test_failures_without_a_passage_by_hand():
    held = [("Helsinki", True), ("Rome", True), ("Rome", False), (None, False)]

    def failures(searches):
        answers = [asked(n, answer=text, answer_retrieved=own, searches=searches) for n, (text, own) in enumerate(held)]
        return question_metrics(answers)["failures_without_passage"]

    np.testing.assert_array_equal(failures(1), [np.nan, 0, 1, 1])
    assert np.isnan(failures(0)).all(), "a method that never searches"


def test_rows_of_costs():
    """Equation 16 divides by all tokens of a question, retrieved ones included; its numbers are those of figure 8."""
    assert score_per_log_token(0.329, 0.442, 391.4) == pytest.approx(0.385_5 / np.log(391.4))
    assert all(math.isnan(score_per_log_token(0.5, 0.5, tokens)) for tokens in (0, 1, math.nan))
    tokens = [dict(sampled_tokens=100, total_tokens=900), dict(sampled_tokens=300, total_tokens=1100)]
    rows = evaluate([asked(0, **tokens[0]), asked(1, answer="Rome", **tokens[1])], **RUN)
    assert (find(rows, "sampled_tokens").value, find(rows, "sampled_tokens").count) == (200, 2)
    assert find(rows, EFFICIENCY).value == pytest.approx(0.5 / np.log(1000))
    assert math.isnan(find(rows, EFFICIENCY).standard_error)
    unknown = {row.metric for row in evaluate([asked()], **RUN)}
    assert unknown.isdisjoint({"sampled_tokens", EFFICIENCY, "failures_without_passage"})


def test_rows_by_language_group_and_subset():
    rows = evaluate(ANSWERED, **RUN)
    assert find(rows, "c3_recall").value == 0.75
    assert find(rows, "c3_recall", "de").value == 0.5
    assert find(rows, "c3_recall", "seen").count == find(rows, "c3_recall", "zero_shot").count == 2
    assert find(rows, "searches", "all", "held_out/native_missing").value == 2.5
    assert find(rows, "correct_language").count == 1
    assert len({(row.split, row.language, row.metric) for row in rows}) == len(rows)
    # Means 1 and 1/2 of two questions: clustered error |1 - 1/2| / 2, not that of four independent answers.
    assert find(rows, "c3_recall").standard_error == pytest.approx(0.25)
    assert find(rows, "c3_recall", "en").standard_error == 0
    failed = evaluate([*ANSWERED[:3], dataclasses.replace(ANSWERED[3], failed=True)], **RUN)
    assert (find(failed, "c3_recall").value, find(failed, "c3_recall").count) == (1.0, 3)
    assert (find(failed, "failed").value, find(failed, "failed").count) == (0.25, 4)
    assert (find(rows, "failed").value, find(rows, "unanswered/no_tag").count) == (0, 4), "for means over runs"


def test_without_a_judged_answer_the_correct_language_rate_has_no_value(tmp_path):
    """A year has no language: the rate of such answers is not 100 %."""
    rows = evaluate([asked(0, "en", "1999"), asked(0, "de", "1999")], **RUN)
    rate = find(rows, "correct_language")
    assert (math.isnan(rate.value), rate.count) == (True, 0)
    for own in ([], rows):
        write_rows(tmp_path / "evaluation.json", own)
        assert repr(read_rows(tmp_path / "evaluation.json")) == repr(own)
    [written] = [row for row in json.loads((tmp_path / "evaluation.json").read_text())["rows"]
                 if (row["metric"], row["language"]) == ("correct_language", "all")]  # fmt: skip
    assert (written["value"], written["count"]) == (None, 0)
    judged = Row(**{**ROW, **dict(metric="correct_language", value=0.5, count=4, seed=1)})
    [averaged] = mean_over_seeds([dataclasses.replace(judged, value=math.nan, count=0, seed=0), judged])
    assert (averaged.value, averaged.count) == (0.5, 4)


def test_differences_are_paired_by_question_and_language():
    def answers(texts):
        return [asked(i // 2, "en" if i % 2 else "de", text, ("euro",)) for i, text in enumerate(texts)]

    before, after = answers(["euro", "", "", ""]), answers(["euro", "euro", "euro", ""])
    differences = compare(before, after[::-1], split="test", seen_languages=("en",))
    assert differences[("test", "all"), "c3_recall"].value == 0.5
    assert differences[("test", "zero_shot"), "c3_recall"].value == 0.5
    with pytest.raises(ValueError, match="different questions"):
        compare(before, after[1:], split="test", seen_languages=())


def test_mean_over_seeds_keeps_everything_else_apart():
    errors = (0.1, 0.3, math.nan)
    seeds = [Row(**{**ROW, "value": 0.2 * (1 + n), "seed": n, "standard_error": errors[n]}) for n in range(3)]
    other = Row(**{**ROW, "method": "b"})
    averaged, alone = mean_over_seeds([*seeds, other])
    assert (averaged.value, averaged.count, averaged.seed) == (pytest.approx(0.4), 30, "0,1,2")
    assert averaged.standard_error == pytest.approx(0.2), "over the questions, which all have in common"
    assert alone is other


def test_a_malformed_file_is_named(tmp_path):
    path = tmp_path / "evaluation.json"
    with pytest.raises(UserError, match="no evaluation"):
        read_rows(path)
    for content, named in (([], ""), ({"rows": [ROW, ROW | {"value": "high"}]}, ": rows.1.value")):
        path.write_text(json.dumps(content))
        with pytest.raises(UserError) as raised:
            read_rows(path)
        assert f"{path}{named}" in str(raised.value)
        assert "\n" not in str(raised.value)


LANGUAGES = ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh", "de", "ko", "es", "pt", "th")


@pytest.mark.parametrize(
    ("language", "answer", "expected"),
    [
        ("en", None, np.nan),
        ("fr", "1999", np.nan),
        ("th", "EUR", np.nan),
        ("ru", "F-16", np.nan),
        ("fr", "Berlin", np.nan),
        ("ja", "日本", np.nan),
        ("en", "?!", np.nan),
        ("xx", "some longer answer in Latin letters", np.nan),  # unknown to CLDR
        ("ru", "рубль", 1),
        ("en", "рубль", 0),
        ("zh", "アメリカドル", 0),
        ("ja", "米ドル", 1),
        ("zh", "Renminbi yuan", 0),
        ("fr", "le dollar des États-Unis d'Amérique", 1),
        ("de", "le dollar des États-Unis d'Amérique", 0),
        ("fi", "Yhdysvaltain dollari on sen valuutta", 1),
    ],
)
def test_the_language_of_an_answer_by_script_and_identifier(language, answer, expected):
    scores = correct_language([asked(0, language, answer, ("nothing alike",))], LANGUAGES)
    np.testing.assert_array_equal(scores, [expected])


CITIES = {"km": "ភ្នំពេញ", "am": "አዲስ አበባ", "si": "කොළඹ", "ne": "काठमाडौँ", "el": "Αθήνα", "he": "ירושלים"}
CITIES |= {"te": "హైదరాబాద్", "bn": "ঢাকা", "ja": "さくら", "ko": "서울", "th": "กรุงเทพ", "zh": "北京", "ug": "ئۈرۈمچى"}


@pytest.mark.parametrize("language", ["en", *CITIES])
def test_an_answer_in_each_script_is_right_in_its_language_alone(language):
    answers = CITIES | {"en": "London"}
    scores = {
        code: correct_language([asked(0, language, answer, ("?",))], ("en", *CITIES))[0]
        for code, answer in answers.items()
    }
    # Han without kana may be Japanese; too short to tell.
    unsure = {("ja", "zh"), ("zh", "zh")}
    wanted = {code: np.nan if (language, code) in unsure else float(code == language) for code in answers}
    np.testing.assert_equal(scores, wanted)


def test_a_script_without_an_identifier_is_not_judged():
    serbian = asked(0, "sr", "Glavni grad Srbije je Beograd", ("x",))
    assert np.isnan(correct_language([serbian], LANGUAGES)[0])
    assert np.isnan(correct_language([asked(0, "ja", "ーー", ("x",))], LANGUAGES)[0])  # of two scripts alike


def test_golds_decide_about_names_before_any_identifier():
    versions = [
        asked(0, "fr", "Japan", ("Japon",)),
        asked(0, "en", "Japan", ("Japan",)),
        asked(0, "de", "Japan!", ("Japan",)),
    ]
    assert correct_language(versions, LANGUAGES).tolist() == [0, 1, 1]
    unrelated = [asked(0, "fr", "Japan", ("Japon",)), asked(1, "en", "Japan", ("Japan",))]
    assert np.isnan(correct_language(unrelated, LANGUAGES)[0])


PASSAGES = [f"p{number}" for number in range(12)]
RANKINGS = st.lists(st.sampled_from(PASSAGES), unique=True, max_size=12)
JUDGED = st.dictionaries(st.sampled_from(PASSAGES), st.integers(0, 3), min_size=1).filter(lambda own: any(own.values()))
RETRIEVAL = {"method": "retrieval", "model": "m", "dataset": "d", "split": "s"}


@given(st.lists(st.tuples(RANKINGS, JUDGED), min_size=1, max_size=4), st.sampled_from([2, 3, 10]))
def test_retrieval_metrics_are_trec_evals(queries, k):
    """Each query is in a language of its own."""
    found, judged = [list(ranking) for ranking, _ in queries], [own for _, own in queries]
    languages = list(map(str, range(len(queries))))
    rows = retrieval_rows(found, judged, languages, cuts=(k,), **RETRIEVAL)
    for depth, names in (
        (10, {"ndcg_cut_10": "ndcg@10"}),
        (k, {f"recall_{k}": f"recall@{k}", "recip_rank": f"mrr@{k}"}),
    ):
        measures = {"ndcg_cut.10", f"recall.{k}", "recip_rank"}
        oracle = pytrec_eval.RelevanceEvaluator(dict(zip(languages, judged, strict=True)), measures)
        run = {
            code: {p: 100.0 - rank for rank, p in enumerate(ids[:depth])}
            for code, ids in zip(languages, found, strict=True)
        }
        expected = oracle.evaluate(run)
        for code, ids in zip(languages, found, strict=True):
            wanted = expected.get(code) if ids else None  # trec_eval leaves empty rankings out
            for name, metric in names.items():
                [value] = [row.value for row in rows if (row.language, row.metric) == (code, metric)]
                assert value == pytest.approx(wanted[name] if wanted else 0.0, rel=1e-6, abs=1e-12)


def test_retrieval_rows_by_language_and_over_all():
    found = [["a", "b"], ["x", "y"], ["c"], []]
    judged = [{"b": 1}, {"x": 1, "z": 1}, {"c": 0}, {"q": 1}]
    rows = retrieval_rows(found, judged, ["fi", "en", "en", "en"], cuts=(1, 2), **RETRIEVAL)
    values = {(row.language, row.metric): (row.value, row.count) for row in rows}
    assert values["fi", "recall@1"] == (0.0, 1)
    assert values["fi", "mrr@2"] == (0.5, 1)
    assert values["en", "recall@2"] == (0.25, 2)  # a query without a relevant passage does not count
    assert values["all", "recall@2"] == (0.5, 3)
    assert np.isnan(next(row.standard_error for row in rows if row.language == "fi"))
    assert {row.metric for row in rows} == {"recall@1", "recall@2", "mrr@2", "ndcg@10"}
    assert {row.language for row in retrieval_rows([["a"]], [{"a": 1}], ["fi"], **RETRIEVAL)} == {"fi"}
    repeated, *_ = retrieval_rows([["a", "a", "b"]], [{"a": 1, "b": 2}], ["fi"], cuts=(2,), **RETRIEVAL)
    assert repeated.value == 1.0, "an id counts once"
    with pytest.raises(UserError, match="no query of d, s"):
        retrieval_rows([["a"]], [{"a": 0}], ["fi"], **RETRIEVAL)
