"""Shares of a data set: whole questions, nested, and no other share than one that exists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.batches import limited, share_of
from lcrag.data.questions import Question
from lcrag.errors import UserError

QUESTIONS = [
    Question(id=str(number), dataset="d", language=language, text="?", answers=("a",))
    for number in range(40)
    for language in ("en", "fi", "ja")
]


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(0, 3))
def test_smaller_shares_are_parts_of_larger_ones(one, other, seed):
    small, large = (share_of(QUESTIONS, share, seed=seed) for share in sorted((one, other)))
    assert set(q.id for q in small) <= set(q.id for q in large)
    assert len(large) == 3 * max(1, round(max(one, other) * 40)), "every question in all its languages"
    assert large == [question for question in QUESTIONS if question in large], "in the order in which they came"


def test_the_whole_and_another_seed():
    assert share_of(QUESTIONS, 1.0, seed=0) == QUESTIONS
    assert share_of(QUESTIONS, 0.5, seed=0) != share_of(QUESTIONS, 0.5, seed=1)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_other_shares_do_not_exist(share):
    with pytest.raises(UserError, match="cannot take a share of"):
        share_of(QUESTIONS, share, seed=0)


@given(st.integers(0, 45), st.integers(0, 45), st.integers(0, 3))
def test_a_number_of_questions_in_all_their_languages(one, other, seed):
    small, large = (limited(QUESTIONS, limit, seed=seed) for limit in sorted((one, other)))
    assert len(large) == 3 * min(40, max(one, other)) and len({each.id for each in large}) * 3 == len(large)
    assert {each.id for each in small} <= {each.id for each in large}
    assert large == [question for question in QUESTIONS if question in large], "in the order in which they came"


def test_a_number_of_questions_of_each_language():
    fewer = [each for each in QUESTIONS if each.language != "ja" or int(each.id) < 2]
    languages = [each.language for each in limited(fewer, 5, seed=0)]
    assert [languages.count(code) for code in ("en", "fi", "ja")] == [5, 5, 2]
    assert limited(fewer, None, seed=0) == fewer and limited(QUESTIONS, 5, seed=0) != limited(QUESTIONS, 5, seed=1)
