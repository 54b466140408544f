"""The signs of a collapse: repetition against a plain count, surprisal and language by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Outcome, Turn
from lcrag.evaluation import collapse


def record(tokens=(), own=None, log_probabilities=None, language="fi", answer=None, golds=("Helsinki",)):
    own = np.ones(len(tokens), bool) if own is None else np.array(own, bool)
    scores = np.where(own, -1.0, 0.0) if log_probabilities is None else np.array(log_probabilities)
    return EpisodeRecord(
        question=Question(id="q", dataset="atlas", language=language, text="?", answers=golds),
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


def plain_repetition(tokens, own, size):
    grams = [
        tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1) if all(own[start : start + size])
    ]
    return 1 - len(set(grams)) / len(grams) if grams else 0


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.integers(1, 5))
def test_repetition_is_the_plain_count(pairs, size):
    tokens, own = [token for token, _ in pairs], [by_policy for _, by_policy in pairs]
    expected = plain_repetition(tokens, own, size)
    assert collapse.repetition([record(tokens, own)], size)[0] == pytest.approx(expected)


def test_repetition_by_hand():
    loop, varied, short = record([1, 2, 3, 4] * 5), record(range(20)), record([1, 1, 1])
    assert collapse.repetition([loop, varied, short]).tolist() == [1 - 4 / 17, 0, 0]
    # what the environment repeats is not the policy's
    assert collapse.repetition([record([7] * 10, own=[False] * 10)]).tolist() == [0]


def test_surprisal_reads_the_policys_tokens_only():
    episodes = [record([1, 2, 3], [False, True, True], [-9.0, -1.0, -3.0]), record([1], [False])]
    np.testing.assert_array_equal(collapse.surprisal(episodes), [2.0, np.nan])
    np.testing.assert_array_equal(collapse.largest_surprisal(episodes), [3.0, np.nan])


def test_wrong_language_is_the_correct_language_rate_turned_round():
    answers = ["Helsinki", "Хельсинки", None, "1952"]
    episodes = [record(answer=answer) for answer in answers]
    np.testing.assert_array_equal(collapse.wrong_language(episodes, ("fi", "ru")), [0, 1, np.nan, np.nan])
