"""The rule of the correct-language rate, clause by clause, and the indicators of sentinels."""

import numpy as np
import pytest
from evaluation_trials import asked
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Outcome, Turn
from lcrag.evaluation import correct_language
from lcrag.train import sentinels

LANGUAGES = ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh", "de", "ko", "es", "pt", "th")


@pytest.mark.parametrize(
    ("language", "answer", "expected"),
    [
        ("en", None, np.nan),
        ("en", "", np.nan),
        ("fr", "1999", np.nan),
        ("th", "EUR", np.nan),
        ("ru", "F-16", np.nan),
        ("fr", "Berlin", np.nan),
        ("ja", "日本", np.nan),
        ("en", "?!", np.nan),
        ("xx", "some longer answer in Latin letters", np.nan),  # unknown to CLDR
        ("qki", "some longer answer in Latin letters", np.nan),
        ("ru", "рубль", 1),
        ("en", "рубль", 0),
        ("th", "บาท", 1),
        ("ko", "대한민국 원", 1),
        ("zh", "アメリカドル", 0),
        ("ja", "米ドル", 1),
        ("zh", "Renminbi yuan", 0),
        ("fr", "le dollar des États-Unis d'Amérique", 1),
        ("de", "le dollar des États-Unis d'Amérique", 0),
        ("fi", "Yhdysvaltain dollari on sen valuutta", 1),
    ],
)
def test_by_script_and_identifier(language, answer, expected):
    scores = correct_language([asked(0, language, answer, ("nothing alike",))], LANGUAGES)
    np.testing.assert_array_equal(scores, [expected])


def test_golds_decide_about_names_before_any_identifier():
    versions = [
        asked(0, "fr", "Japan", ("Japon",)),
        asked(0, "en", "Japan", ("Japan",)),
        asked(0, "de", "Japan!", ("Japan",)),
    ]
    assert correct_language(versions, LANGUAGES).tolist() == [0, 1, 1]
    unrelated = [asked(0, "fr", "Japan", ("Japon",)), asked(1, "en", "Japan", ("Japan",))]
    assert np.isnan(correct_language(unrelated, LANGUAGES)[0])


def record(tokens=(), own=None, log_probabilities=None, answer=None):
    own = np.ones(len(tokens), bool) if own is None else np.array(own, bool)
    scores = np.where(own, -1.0, 0.0) if log_probabilities is None else np.array(log_probabilities)
    return EpisodeRecord(
        question=Question(id="q", dataset="atlas", language="fi", text="?", answers=("Helsinki",)),
        prompt="",
        turns=(Turn("policy", ""),),
        tokens=np.array(tokens, np.int32),
        by_policy=own,
        log_probabilities=scores.astype(np.float32),
        turn=np.zeros(len(tokens), np.int32),
        policy_version=0,
        outcome=Outcome(answer=answer),
        counts={"searches": 0},
        finished=True,
        episode=0,
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.integers(1, 5))
def test_repetition_is_the_plain_count(pairs, size):
    tokens, own = [token for token, _ in pairs], [by_policy for _, by_policy in pairs]
    starts = [start for start in range(len(tokens) - size + 1) if all(own[start : start + size])]
    grams = [tuple(tokens[start : start + size]) for start in starts]
    expected = 1 - len(set(grams)) / len(grams) if grams else 0
    assert sentinels.repetition([record(tokens, own)], size)[0] == pytest.approx(expected)


def test_repetition_by_hand():
    loop, varied, short = record([1, 2, 3, 4] * 5), record(range(20)), record([1, 1, 1])
    assert sentinels.repetition([loop, varied, short]).tolist() == [1 - 4 / 17, 0, 0]


def test_surprisal_reads_the_policys_tokens_only():
    episodes = [record([1, 2, 3], [False, True, True], [-9.0, -1.0, -3.0]), record([1], [False])]
    np.testing.assert_array_equal(sentinels.surprisal(episodes), [2.0, np.nan])
    np.testing.assert_array_equal(sentinels.largest_surprisal(episodes), [3.0, np.nan])


def test_wrong_language_is_the_complement_of_correct_language():
    episodes = [record(answer=answer) for answer in ("Helsinki", "Хельсинки", None, "1952")]
    np.testing.assert_array_equal(sentinels.wrong_language(episodes, ("fi", "ru")), [0, 1, np.nan, np.nan])
