"""LcRL: which collections its program searches, its prompt, its groups, and its coupled reward."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_scripts import drive, finished, searched, stops
from support import plain_rewards as oracle
from support import tiny_tokenizer

from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING, Question
from lcrag.episodes import Observe, Outcome, all_at_once, english_only, local_first, native_only
from lcrag.episodes.searches import information, local_then_eight
from lcrag.errors import UserError
from lcrag.methods.lcrl import anti_consistency, hierarchical_search, language_coupled, language_coupled_reward, pivot
from lcrag.methods.lcrl.program import PROMPTS
from lcrag.retrieval.passages import Hit

QUESTION = Question(id="7", dataset="d", language="fr", text="Quelle est la capitale du Pérou ?", answers=("Lima",))
COLLECTIONS = ("ar", "en", "fr", "ja")
SEARCH, ANSWER = "<search>Pérou</search>", "<answer> Lima </answer>"
PROGRAM = functools.partial(hierarchical_search, QUESTION, COLLECTIONS)


@pytest.mark.parametrize(
    ("route", "languages"),
    [
        (local_first, [("fr",), ("ar", "en", "ja"), ("en",), ("en",)]),
        (local_then_eight, [("fr",), ("ar", "en", "ja"), ("en",), ("en",)]),
        (native_only, [("fr",)] * 4),
        (english_only, [("en",)] * 4),
        (all_at_once, [("fr", "ar", "en", "ja")] * 4),
    ],
)
def test_the_hierarchy_of_searches(route, languages):
    outcome, requests = drive(PROGRAM(budget=4, route=route), [SEARCH] * 4 + [ANSWER])
    assert outcome == Outcome(answer="Lima")
    assert searched(requests) == languages
    assert stops(requests) == [("</search>", "</answer>")] * 4 + [("</answer>",)]
    assert [local_first(n, "en", ("en", "fr")) for n in (1, 2, 3)] == [("en",), ("fr",), ("en",)]
    assert [local_first(n, "fr", ("fr",)) for n in (1, 2, 3)] == [("fr",)] * 3
    assert local_then_eight(2, "de", (*LCRL_LANGUAGES, "bn")) == LCRL_TRAINING


def test_labels_name_the_language_of_passages_and_no_cut_loses_them():
    def found(text):
        hits = [[Hit(id=code, title="T", text=text, score=1.0, language=code)] for code in ("fr", "ja")]
        return information([hits], "search_r1", 150, query="Lima", labels=True)

    short = found("Lima.").fit(tiny_tokenizer(), 10_000)
    assert (
        short
        == "\n\n<information>[lang=fr]\nDoc 1(Title: T) Lima.\n[lang=ja]\nDoc 2(Title: T) Lima.\n</information>\n\n"
    )
    long = found("It is Lima. " * 40).fit(tiny_tokenizer(), 10_000)
    assert (long.count("[lang=fr]\n"), long.count("[lang=ja]\n")) == (1, 1)
    assert len(tiny_tokenizer().encode(long)) <= 150


def test_of_a_search_the_best_passages_over_all_languages_are_shown():
    hits = [
        [Hit(id="1", title=code, text="x", score=score, language=code)] for code, score in (("ar", 0.1), ("en", 0.9))
    ]
    _, requests = drive(PROGRAM(shown=1), [SEARCH, ANSWER], [hits])
    block = [request.text for request in requests if isinstance(request, Observe)][1].fit(tiny_tokenizer(), 500)
    assert "Title: en" in block
    assert "Title: ar" not in block


def test_the_prompt_of_table_7():
    prompt = PROMPTS["lcrl"](QUESTION)
    assert "1. First search in French knowledge base." in prompt
    assert prompt.endswith(
        "The answer must be in French. For example: <answer> Pékin </answer>. "
        "Question: Quelle est la capitale du Pérou ?\n"
    )
    with pytest.raises(UserError, match="'xx'"):
        PROMPTS["lcrl"](dataclasses.replace(QUESTION, language="xx"))
    # A pivot question wants the native language.
    extra = {"answer_language": "zh"}
    version = Question(id="7", dataset="d", language="en", text="Capital of Peru?", answers=("利马",), extra=extra)
    prompt = PROMPTS["lcrl"](version)
    assert "First search in English" in prompt
    assert "must be in Chinese" in prompt
    assert PROMPTS["atlas"](version) == "Capital of Peru? [zh]\n"
    assert PROMPTS["atlas"](QUESTION) == "Quelle est la capitale du Pérou ?\n"


def test_pivot_groups_answer_in_the_native_language():
    table = [
        Question(id=str(number), dataset="d", language=code, text="?", answers=(f"{code}-{number}",))
        for number in range(11)
        for code in LCRL_TRAINING
    ]
    groups = pivot(table, LCRL_TRAINING)
    assert len(groups) == 11 * len(LCRL_TRAINING)
    assert len({group[0].coupling for group in groups}) == len(groups)
    for group in groups:
        native = group[0].extra["answer_language"]
        assert len({row.language for row in group}) == 3
        assert group[0].language == native
        assert {"en", native} <= {row.language for row in group}
        assert {row.answers for row in group} == {(f"{native}-{group[0].id.partition('@')[0]}",)}


ANSWERS = (
    st.none() | st.text(alphabet="ab 北京", max_size=6) | st.sampled_from(["franc CFA", "Franc cfa", "franc", "フラン"])
)
EPISODES = st.lists(st.tuples(ANSWERS, st.sampled_from([0.0, 0.39, 0.4, 1.0]), st.integers(-1, 2)), max_size=14)
# One group of more wrong answers than have the full weight, which resemble each other in part.
ALIKE = st.lists(st.tuples(st.text("abc", min_size=3, max_size=7), st.just(0.0), st.just(0)), min_size=6, max_size=24)


def columns(episodes):
    answers, scores, groups = [list(column) for column in zip(*episodes, strict=True)] if episodes else ([], [], [])
    return answers, np.array(scores, float), np.array(groups, int)


@given(EPISODES | ALIKE, st.sampled_from([0.0, 0.5]))
def test_agrees_with_plain_python(episodes, margin):
    answers, scores, groups = columns(episodes)
    expected = oracle.anti_consistency(answers, scores, groups, margin=margin)
    np.testing.assert_allclose(anti_consistency(answers, scores, groups, margin=margin), expected, rtol=0, atol=1e-15)
    backwards = anti_consistency(answers[::-1], scores[::-1], 7 - 3 * groups[::-1], margin=margin)  # and other ids
    np.testing.assert_array_equal(backwards[::-1], anti_consistency(answers, scores, groups, margin=margin))
    once = oracle.anti_consistency_sets_once(answers, scores, groups, margin=margin)
    np.testing.assert_allclose(once, expected, rtol=0, atol=1e-15)


def test_by_hand():
    """Two equal wrong answers of three bad ones: similarity 1, weight 3/5; the third resembles nobody."""
    penalties = anti_consistency(["franc", "Franc!", "yen", "euro", "franc"], [0, 0.1, 0, 1, 0], [4, 4, 4, 4, 9])
    assert penalties == pytest.approx([-0.3, -0.3, 0, 0, 0])
    for margin in (0.5, 0.0):  # full weight from five bad answers, and the clip
        assert anti_consistency(["yen yen"] * 6, np.zeros(6), np.zeros(6, int), margin=margin).tolist() == [-0.5] * 6
    # grams abc bcd cde against abc bcd: recalls 1 and 2/3.
    assert anti_consistency(["abcde", "abcd"], [0, 0], [0, 0]) == pytest.approx([-(5 / 6 - 0.5) * 2 / 5] * 2)
    # A good answer is no neighbour.
    assert anti_consistency(["franc", "franc", "yen"], [0.4, 0.0, 0.0], [0, 0, 0]).tolist() == [0, 0, 0]
    # Short answers resemble each other only as whole grams.
    assert anti_consistency(["12", "12"], [0, 0], [0, 0]).tolist() == pytest.approx([-0.2, -0.2])
    assert anti_consistency(["12", "12"], [0, 0], [0, 0], short_gold="zero").tolist() == [0, 0]
    assert anti_consistency([None, ""], [0, 0], [0, 0]).tolist() == [0, 0]


def test_the_floor_erases_the_penalty_of_wholly_wrong_answers():
    answer_rewards, penalties = [0.0, 0.3, 1.0], [-0.5, -0.5, 0.0]
    assert language_coupled_reward(answer_rewards, penalties).tolist() == pytest.approx([0.0, 0.29, 1.0])
    assert language_coupled_reward(answer_rewards, penalties, floor=None).tolist() == pytest.approx([-0.01, 0.29, 1.0])
    assert language_coupled_reward(answer_rewards, penalties, weight=0.0).tolist() == answer_rewards


BATCH = finished(["euro", "franc", "franc", None], [("Euro",), ("euro",), ("euros", "dollar"), ("euro",)])


def test_the_reward_names_its_terms():
    values = language_coupled(floor=None)(BATCH)
    assert list(values) == ["total", "c3_recall", "anti_consistency"]
    assert values["c3_recall"].tolist() == [1, 0, 0, 0]
    assert values["anti_consistency"].tolist() == pytest.approx([0, -0.3, -0.3, 0])
    assert values["total"].tolist() == pytest.approx([1, -0.006, -0.006, 0])
    assert language_coupled()(BATCH)["total"].tolist() == [1, 0, 0, 0]
    # The ablations of table 2.
    values = language_coupled(answer="exact_match", weight=0.0, floor=None)(BATCH)
    assert set(values) == {"total", "exact_match", "anti_consistency"}
    assert values["total"].tolist() == values["exact_match"].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("answer", ["c3_recall", "exact_match", "flexible_exact_match"])
def test_the_normalisation_is_that_of_the_answer_reward_and_of_the_similarity(answer):
    episodes = dataclasses.replace(
        BATCH, answers=["20 ℃", "«yen»", "yen", None], golds=[("20 °C",), ("a",), ("a",), ()]
    )
    published, unicode = (language_coupled(answer, normalisation=name)(episodes) for name in ("lcrl", "unicode"))
    assert unicode[answer].tolist() == [1, 0, 0, 0]
    assert published[answer][0] < 1
    assert unicode["anti_consistency"].tolist() == pytest.approx([0, -0.3, -0.3, 0])
    assert published["anti_consistency"][1] > -0.2  # "«yen»" and "yen" differ
