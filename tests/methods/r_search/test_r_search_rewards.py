"""R-Search's rewards against the paper's formulas, and every malformed episode scored as the definition says."""

import itertools

import numpy as np
import pytest
from finished_episodes import finished

from lcrag.errors import UserError
from lcrag.methods.r_search import format_rewards, r_search_reward

FORMED = {"evidence": "Lima is the capital.", "valid_searches": 1, "well_formed_answer": True}


def plain_format(searched, answer, evidence, gamma_e, gamma_a):
    """Equation 5, read aloud."""
    if searched:
        return gamma_e * evidence + gamma_a * answer
    return gamma_e + gamma_a * answer


def test_the_format_reward_is_equation_5():
    cases = np.array(list(itertools.product([False, True], repeat=3)))
    for gammas in ((0.2, 0.2), (0.5, 0.1)):
        rewards = format_rewards(*cases.T, *gammas)
        assert rewards.tolist() == pytest.approx([plain_format(*case, *gammas) for case in cases])


class Parrot:
    """A reader that answers with the last word of the evidence, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, questions, evidences):
        self.asked.append(list(zip(questions, evidences, strict=True)))
        return [evidence.split()[-1] for evidence in evidences]


def episodes(*answers_and_notes, golds=("Lima",)):
    answers, notes = zip(*answers_and_notes, strict=True)
    return finished(answers, [golds] * len(answers), extra=notes)


def test_the_terms_and_their_sum():
    reader = Parrot()
    batch = episodes(
        ("Lima", FORMED | {"evidence": "The capital is Lima"}),  # 1 + 1 + 0.4: the most
        ("Lima", {"evidence": None, "valid_searches": 0, "well_formed_answer": True}),  # an answer without a search
        ("Lima", FORMED | {"evidence": None}),  # a search, and no well-formed evidence
        ("in Lima", FORMED | {"evidence": "It is Cusco", "well_formed_answer": False}),
        (None, {"evidence": None, "valid_searches": 0, "well_formed_answer": False}),  # nothing at all
        (None, {"evidence": None, "valid_searches": 2, "well_formed_answer": False}),
    )
    rewards = r_search_reward(reader)(batch)
    assert list(rewards) == ["total", "token_f1", "evidence", "format"]
    assert rewards["token_f1"].tolist() == pytest.approx([1, 1, 1, 2 / 3, 0, 0])
    assert rewards["evidence"].tolist() == [1, 0, 0, 0, 0, 0]
    assert rewards["format"].tolist() == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.2, 0])
    assert rewards["total"].tolist() == pytest.approx([2.4, 1.4, 1.2, 2 / 3 + 0.2, 0.2, 0])
    assert reader.asked == [[("Q0?", "The capital is Lima"), ("Q3?", "It is Cusco")]]  # once, and only what is formed


def test_evidence_may_be_judged_without_reward():
    batch = episodes(("Lima", FORMED), ("Cusco", FORMED | {"evidence": "It is Lima"}))
    usual, judged = (r_search_reward(Parrot(), evidence_weight=weight)(batch) for weight in (1.0, 0.0))
    np.testing.assert_array_equal(judged["evidence"], usual["evidence"])
    np.testing.assert_allclose(usual["total"] - judged["total"], usual["evidence"])


def test_without_evidence_neither_it_nor_its_form_is_rewarded():
    batch = episodes(("Lima", FORMED), ("Lima", FORMED | {"valid_searches": 0}), (None, FORMED | {"evidence": None}))
    rewards = r_search_reward(None, gamma_answer=0.3)(batch)
    assert list(rewards) == ["total", "token_f1", "format"]
    assert rewards["format"].tolist() == [0.3] * 3
    assert rewards["total"].tolist() == pytest.approx([1.3, 1.3, 0.3])


def test_mistakes_are_one_sentence():
    with pytest.raises(UserError, match="gamma_evidence"):
        r_search_reward(None, gamma_evidence=-1)
    with pytest.raises(UserError, match="'bleu'"):
        r_search_reward(None, answer="bleu")
    with pytest.raises(UserError, match="bind Method.program = @r_search"):
        r_search_reward(None)(episodes(("Lima", {})))
