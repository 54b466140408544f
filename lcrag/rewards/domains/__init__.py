"""Rewards by domain: mathematics, multiple choice, instruction following, summarisation, translation (Translate-R1)."""

from lcrag.rewards.domains.constraints import read_constraints, satisfied_share
from lcrag.rewards.domains.exact_answers import mathematics, multiple_choice, number, option
from lcrag.rewards.domains.judging import Judge, judged, score_in
from lcrag.rewards.domains.reward import SCORERS, domain_reward
from lcrag.rewards.domains.written_texts import (
    Written,
    chrf,
    instruction_following,
    length_ratio,
    repetition_ratio,
    summarisation,
    translation,
)
