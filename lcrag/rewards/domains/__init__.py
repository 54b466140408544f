"""Rewards by domain: mathematics, multiple choice, instruction following, summarisation, translation (Translate-R1)."""

from lcrag.rewards.domains.constraints import read_constraints
from lcrag.rewards.domains.exact_answers import mathematics, multiple_choice, number, option
from lcrag.rewards.domains.reward import (
    SCORERS,
    Judge,
    Written,
    chrf,
    domain_reward,
    instruction_following,
    judged,
    length_ratio,
    repetition_ratio,
    score_in,
    summarisation,
    translation,
)
