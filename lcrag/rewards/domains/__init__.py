"""Rewards by domain: mathematics, multiple choice, instruction following, summarisation, translation (Translate-R1)."""

from lcrag.rewards.domains.constraints import read_constraints, satisfied_share
from lcrag.rewards.domains.generation import Written, instruction_following, summarisation, translation
from lcrag.rewards.domains.heuristics import chrf, length_ratio, repetition_ratio
from lcrag.rewards.domains.judging import Judge, judged, score_in
from lcrag.rewards.domains.mathematics import mathematics, number
from lcrag.rewards.domains.multiple_choice import multiple_choice, option
from lcrag.rewards.domains.reward import SCORERS, domain_reward

__all__ = [
    "SCORERS",
    "Judge",
    "Written",
    "chrf",
    "domain_reward",
    "instruction_following",
    "judged",
    "length_ratio",
    "mathematics",
    "multiple_choice",
    "number",
    "option",
    "read_constraints",
    "repetition_ratio",
    "satisfied_share",
    "score_in",
    "summarisation",
    "translation",
]
