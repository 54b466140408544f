"""Sums in stories and choices about countries, in languages that a policy knows, half knows, or cannot know."""

from lcrag.data.atlas.comprehension.oracle import CALL_BEGINS, ComprehensionOracle
from lcrag.data.atlas.comprehension.questions import HALF_KNOWN, KNOWN, LANGUAGES, SPLITS, TIERS, ComprehensionTasks
from lcrag.data.atlas.comprehension.translator import ComprehensionTranslator

__all__ = [
    "CALL_BEGINS",
    "HALF_KNOWN",
    "KNOWN",
    "LANGUAGES",
    "SPLITS",
    "TIERS",
    "ComprehensionOracle",
    "ComprehensionTasks",
    "ComprehensionTranslator",
]
