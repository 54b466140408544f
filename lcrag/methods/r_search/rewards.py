"""R-Search's rewards for the answer, the evidence and the format (section 3.2.2, equations 3 to 6)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import gin
import numpy as np
from jaxtyping import Bool, Float

from lcrag.errors import NotNegative, typed
from lcrag.rewards.terms import Episodes, Reward, Term, TermSum, Values, answer_term

# (questions, evidences) -> a frozen model's answers from the evidence alone, None where it fails
Reader: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[str | None]]


def format_rewards(
    searched: Bool[np.ndarray, " episodes"],
    answer_formed: Bool[np.ndarray, " episodes"],
    evidence_formed: Bool[np.ndarray, " episodes"],
    gamma_evidence: float = 0.2,
    gamma_answer: float = 0.2,
) -> Float[np.ndarray, " episodes"]:
    """r_f = (1 - I_S)(gamma_e + gamma_a I_A) + I_S(gamma_e I_E + gamma_a I_A): equation 5.

    Args:
      searched: I_S, whether a search was made.
      answer_formed: I_A, whether there is exactly one answer box, and it is not empty.
      evidence_formed: I_E, whether there is exactly one evidence box, it is not empty, and an observation precedes it.
    """
    return gamma_evidence * (~searched | evidence_formed) + gamma_answer * answer_formed


@gin.configurable
@typed
def r_search_reward(
    reader: Reader | None,
    answer: str = "token_f1",
    gamma_evidence: NotNegative = 0.2,
    gamma_answer: NotNegative = 0.2,
    evidence_weight: NotNegative = 1.0,
) -> Reward:
    """R-Search's reward (equation 6): answer + evidence + format, at most 2.4 with a search and 1.4 without.

    Args:
      reader: The frozen model, asked once for all evidence of a step; None is the ablation "w/o Evidence", without
        evidence reward and `gamma_evidence`; with a reader, the program must ask for evidence.
      answer: Compares answers, the policy's and the reader's, with golds: a key of `ANSWER_TERMS`.
      gamma_evidence, gamma_answer: As in `format_rewards`.
      evidence_weight: Weight of the evidence reward (the paper: 1); 0: it is logged only.
    """

    def evidence(episodes: Episodes) -> Values:
        """Equation 4: the reader's answers from the evidence alone; 0 without evidence, NaN where the reader fails."""
        assert reader is not None
        evidences = episodes.reported("evidence", "r_search")
        places = [place for place, text in enumerate(evidences) if text is not None]
        chosen = episodes.at(places)
        answers = reader(chosen.questions, [evidences[place] for place in places])
        scores = first.score(dataclasses.replace(chosen, answers=answers))
        rewards = np.zeros(len(evidences))
        rewards[places] = np.where([text is None for text in answers], np.nan, scores)
        return rewards

    def form(episodes: Episodes) -> Values:
        answers = np.array(episodes.reported("well_formed_answer", "r_search"), bool)
        if reader is None:
            return gamma_answer * answers
        searched = np.array(episodes.reported("valid_searches", "r_search"), int) > 0
        formed = np.array([text is not None for text in episodes.reported("evidence", "r_search")], bool)
        return format_rewards(searched, answers, formed, gamma_evidence, gamma_answer)

    first, last = answer_term(answer), Term("format", form)
    if reader is None:
        return TermSum(terms=(first, last))
    terms = first, Term("evidence", evidence, evidence_weight), last
    return TermSum(terms=terms, models={"reader": reader}, needs={"evidence": True})
