"""Composition of rewards: terms by name, and scheduled weights."""

import dataclasses

import numpy as np
import pytest
from finished_episodes import finished

from lcrag.rewards import Term, TermSum, answer_term

EPISODES = finished(["euro", "franc", "franc", None], [("Euro",), ("euro",), ("euros", "dollar"), ("euro",)])


def test_weights_may_follow_the_step():
    length = Term(
        "length", lambda episodes: np.array([len(a or "") for a in episodes.answers], float), lambda s: s / 10
    )
    reward = TermSum(terms=(answer_term("exact_match"), length))
    later = dataclasses.replace(EPISODES, step=5)
    assert reward(EPISODES)["total"].tolist() == [1, 0, 0, 0]
    assert reward(later)["total"].tolist() == pytest.approx([3, 2.5, 2.5, 0])
    assert reward(later)["length"].tolist() == [4, 5, 5, 0]
