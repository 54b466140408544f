"""Stage 3: what is wrong with a translation at first sight, for no money (Translate-R1, Appendix L)."""

from lcrag.methods.translate_r1.pipeline.thresholds import Thresholds
from lcrag.rewards.domains.heuristics import chrf, length_ratio, repetition_ratio

REPEATS, TOO_SHORT, TOO_LONG, COPY = "repeats itself", "too short", "too long", "a copy of the source"


def defect(translation: str, source: str, thresholds: Thresholds) -> str:
    """The first thing that is wrong with a translation; empty if nothing is."""
    if repetition_ratio(translation) > thresholds.repetition:
        return REPEATS
    if length_ratio(translation, source) < thresholds.least_length:
        return TOO_SHORT
    if length_ratio(translation, source) > thresholds.most_length:
        return TOO_LONG
    return COPY if chrf(translation, [source]) > thresholds.copy else ""
