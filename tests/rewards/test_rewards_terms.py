"""Composition of rewards: terms by name, and scheduled weights."""

import numpy as np
import pytest

from lcrag.rewards import Episodes, Term, TermSum, answer_term

EPISODES = Episodes(
    answers=["euro", "franc", "franc", None],
    golds=[("Euro",), ("euro",), ("euros", "dollar"), ("euro",)],
    group_ids=np.zeros(4, int),
    languages=["en", "fr", "de", "it"],
)


def test_weights_may_follow_the_step():
    length = Term(
        "length", lambda episodes: np.array([len(a or "") for a in episodes.answers], float), lambda s: s / 10
    )
    reward = TermSum(terms=(answer_term("exact_match"), length))
    later = Episodes(**{**vars(EPISODES), "step": 5})
    assert reward(EPISODES)["total"].tolist() == [1, 0, 0, 0]
    assert reward(later)["total"].tolist() == pytest.approx([3, 2.5, 2.5, 0])
    assert reward(later)["length"].tolist() == [4, 5, 5, 0]
