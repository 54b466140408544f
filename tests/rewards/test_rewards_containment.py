"""Whether a passage holds an answer: words, scripts and signs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.rewards.matching import holds_answer


@pytest.mark.parametrize(
    ("passage", "golds", "held"),
    [
        ("Chad Its currency is the CFA franc.", ["CFA Franc"], True),
        ("It was founded in 1919.", ["191"], False),
        ("the Euro came in 1999–2002", ["1999"], True),
        ("He served in the US army", ["U.S."], True),
        ("He served in the U.S. army", ["US"], True),
        ("northern Ireland", ["no"], False),
        ("Euro", ["the euro"], True),
        ("通貨はユーロです。", ["ユーロ"], True),
        ("สกุลเงินคือยูโร", ["ยูโร"], True),
        ("세종대왕은 한글을 만들었다", ["한글"], True),
        ("a, b", ["b", "z"], True),
        ("anything", ["the", "…", ""], False),
        ("anything", [], False),
    ],
)
def test_answers_in_passages(passage, golds, held):
    assert holds_answer(["nothing here", passage], golds) is held
    assert holds_answer([], golds) is False


words = st.lists(st.sampled_from("paris rome is in 1999 not france the".split()), min_size=1, max_size=8)


@given(words, words)
def test_it_is_a_run_of_words(passage, gold):
    kept, wanted = ([word for word in each if word != "the"] for each in (passage, gold))
    places = range(len(kept) - len(wanted) + 1)
    expected = bool(wanted) and any(kept[start : start + len(wanted)] == wanted for start in places)
    assert holds_answer([" ".join(passage)], [" ".join(gold)]) is expected
