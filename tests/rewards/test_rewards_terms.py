"""Composition: terms by name, schedules, and LcRL's reward with its ablations by gin binding."""

import gin
import numpy as np
import pytest

from lcrag.errors import UserError
from lcrag.rewards import Episodes, Term, TermSum, answer_term, language_coupled

EPISODES = Episodes(
    answers=["euro", "franc", "franc", None],
    golds=[("Euro",), ("euro",), ("euros", "dollar"), ("euro",)],
    group_ids=np.zeros(4, int),
    languages=["en", "fr", "de", "it"],
)


def test_language_coupled_names_its_terms():
    values = language_coupled(floor=None)(EPISODES)
    assert list(values) == ["total", "c3_recall", "anti_consistency"]
    assert values["c3_recall"].tolist() == [1, 0, 0, 0]
    assert values["anti_consistency"].tolist() == pytest.approx([0, -0.3, -0.3, 0])
    assert values["total"].tolist() == pytest.approx([1, -0.006, -0.006, 0])
    assert language_coupled()(EPISODES)["total"].tolist() == [1, 0, 0, 0]


def test_ablations_by_binding_alone():
    gin.parse_config(
        'language_coupled.answer = "exact_match"\nlanguage_coupled.weight = 0.0\nlanguage_coupled.floor = None'
    )
    values = language_coupled()(EPISODES)
    assert set(values) == {"total", "exact_match", "anti_consistency"}
    assert values["total"].tolist() == values["exact_match"].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("mistake", [{"answer": "bleu"}, {"weight": -0.1}, {"short_gold": "half"}])
def test_impossible_settings_are_one_sentence(mistake):
    with pytest.raises(UserError) as raised:
        language_coupled(**mistake)
    assert str(raised.value).splitlines()[0].startswith(("no answer reward", "language_coupled."))


def test_weights_may_follow_the_step():
    length = Term(
        "length", lambda episodes: np.array([len(a or "") for a in episodes.answers], float), lambda s: s / 10
    )
    reward = TermSum(terms=(answer_term("exact_match"), length))
    later = Episodes(**{**vars(EPISODES), "step": 5})
    assert reward(EPISODES)["total"].tolist() == [1, 0, 0, 0]
    assert reward(later)["total"].tolist() == pytest.approx([3, 2.5, 2.5, 0])
    assert reward(later)["length"].tolist() == [4, 5, 5, 0]
