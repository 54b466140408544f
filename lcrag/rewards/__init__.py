"""Rewards: vectorised comparisons of answers, and the named terms that methods build on them.

Strings in, float64 NumPy arrays out; heavy work runs in jitted kernels of few shapes.
"""

from lcrag.rewards.call_costs import cost
from lcrag.rewards.costs import cost_adjusted_rewards, gate_firing_probability
from lcrag.rewards.coupling import anti_consistency, language_coupled_reward
from lcrag.rewards.domains import domain_reward
from lcrag.rewards.evidence import r_search_reward
from lcrag.rewards.globalrag import globalrag_reward
from lcrag.rewards.matching import (
    VERDICTS,
    c3_recall,
    c3_recall_bergen,
    exact_match,
    flexible_exact_match,
    squad_accuracy,
    squad_exact_match,
    token_f1,
)
from lcrag.rewards.mixed_segmentation import mixed_f1
from lcrag.rewards.plan_scores import Planned, plan_rewards, plan_scores
from lcrag.rewards.terms import ANSWER_TERMS, Adjustment, Episodes, Reward, Term, TermSum, answer_term, language_coupled
from lcrag.rewards.text import normalise, normalise_english

__all__ = [
    "ANSWER_TERMS",
    "VERDICTS",
    "Adjustment",
    "Episodes",
    "Planned",
    "Reward",
    "Term",
    "TermSum",
    "answer_term",
    "anti_consistency",
    "c3_recall",
    "c3_recall_bergen",
    "cost",
    "cost_adjusted_rewards",
    "domain_reward",
    "exact_match",
    "flexible_exact_match",
    "gate_firing_probability",
    "globalrag_reward",
    "language_coupled",
    "language_coupled_reward",
    "mixed_f1",
    "normalise",
    "normalise_english",
    "plan_rewards",
    "plan_scores",
    "r_search_reward",
    "squad_accuracy",
    "squad_exact_match",
    "token_f1",
]
