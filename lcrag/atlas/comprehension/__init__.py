"""Sums in stories and choices about countries, in languages that a policy knows, half knows, or cannot know."""

from lcrag.atlas.comprehension.questions import HALF_KNOWN, KNOWN, LANGUAGES, SPLITS, TIERS, ComprehensionTasks
from lcrag.atlas.comprehension.translator import ComprehensionTranslator

__all__ = [
    "HALF_KNOWN",
    "KNOWN",
    "LANGUAGES",
    "SPLITS",
    "TIERS",
    "ComprehensionTasks",
    "ComprehensionTranslator",
]
