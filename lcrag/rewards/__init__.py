"""Rewards: vectorised comparisons of answers, and the named terms that methods build on them.

Strings in, float64 NumPy arrays out; whole batches are normalised and compared by vectorised NumPy on the host, which
leaves the devices to the policy.
"""

from lcrag.rewards.domains import domain_reward, mathematics, multiple_choice
from lcrag.rewards.matching import (
    VERDICTS,
    c3_f,
    c3_recall,
    c3_recall_bergen,
    exact_match,
    flexible_exact_match,
    holds_answer,
    mixed_f1,
    squad_accuracy,
    squad_exact_match,
    token_f1,
)
from lcrag.rewards.terms import ANSWER_TERMS, Episodes, Reward, Term, TermSum, answer_term
from lcrag.rewards.text import normalise, normalise_english
