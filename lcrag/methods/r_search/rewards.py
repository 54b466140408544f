"""R-Search's rewards: the answer, the evidence it stands on, and the format (section 3.2.2, equations 3 to 6)."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from lcrag.errors import UserError
from lcrag.rewards.terms import ANSWER_TERMS, Episodes, Reward, Term, TermSum, Values, answer_term

# (questions, evidences) -> the answers of a frozen model that knows nothing else. It raises where it cannot answer.
Reader: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[str]]


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
      gamma_evidence: What the evidence's form is worth.
      gamma_answer: What the answer's form is worth.
    """
    return gamma_evidence * (~searched | evidence_formed) + gamma_answer * answer_formed


def evidence_rewards(
    reader: Reader,
    compare: Callable[[Sequence[str | None], Sequence[Sequence[str]]], Values],
    questions: Sequence[str],
    evidences: Sequence[str | None],
    golds: Sequence[Sequence[str]],
) -> Values:
    """How well a frozen model answers from the evidence alone (equation 4); 0 where there is none.

    Args:
      reader: The frozen model; asked once, about all evidence together.
      compare: Compares its answers with the golds.
      questions: What was asked.
      evidences: The well-formed evidence of each episode, or None.
      golds: Golden answers and their aliases.
    """
    places = [place for place, evidence in enumerate(evidences) if evidence is not None]
    answers = reader([questions[place] for place in places], [evidences[place] or "" for place in places])
    rewards = np.zeros(len(evidences))
    rewards[places] = compare(list(answers), [golds[place] for place in places])
    return rewards


def r_search_reward(
    reader: Reader | None, answer: str = "token_f1", gamma_evidence: float = 0.2, gamma_answer: float = 0.2
) -> Reward:
    """R-Search's reward (equation 6): answer + evidence + format, at most 2.4 with a search and 1.4 without.

    Args:
      reader: Answers from the evidence; None is the ablation "w/o Evidence": neither an evidence reward, nor
        `gamma_evidence` in the format reward.
      answer: Compares answers, the policy's and the reader's, with golds: a key of `ANSWER_TERMS`.
      gamma_evidence: What the evidence's form is worth.
      gamma_answer: What the answer's form is worth.

    Returns:
      A reward that names "total", the answer reward, "evidence" and "format".

    Raises:
      UserError: an unknown answer reward, or a negative gamma.
    """
    if min(gamma_evidence, gamma_answer) < 0:
        raise UserError(
            f"r_search_reward has gammas of {gamma_evidence} and {gamma_answer}: give both a value of 0 or more"
        )
    first = answer_term(answer)

    def form(episodes: Episodes) -> Values:
        answers = np.array(_noted(episodes, "well_formed_answer"), bool)
        if reader is None:
            return gamma_answer * answers
        searched = np.array(_noted(episodes, "valid_searches"), int) > 0
        evidence = np.array([each is not None for each in _noted(episodes, "evidence")], bool)
        return format_rewards(searched, answers, evidence, gamma_evidence, gamma_answer)

    def evidence(episodes: Episodes) -> Values:
        assert reader is not None
        evidences = _noted(episodes, "evidence")
        return evidence_rewards(reader, ANSWER_TERMS[answer], episodes.questions, evidences, episodes.golds)

    last = Term("format", form)
    if reader is None:
        return TermSum(terms=(first, last))
    return TermSum(terms=(first, Term("evidence", evidence), last), models={"reader": reader})


def _noted(episodes: Episodes, name: str) -> list[Any]:
    """What the program noted of each episode."""
    if not all(name in extra for extra in episodes.extra):
        raise UserError(
            f"r_search_reward needs to know {name} of each episode, which another program does not say: bind"
            " Method.program = @r_search()"
        )
    return [extra[name] for extra in episodes.extra]
