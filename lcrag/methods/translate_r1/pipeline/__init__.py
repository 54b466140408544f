"""Questions of one language in others, with answers that stay right (Translate-R1, Section 3.2 and Appendix L).

A source is filtered, translated, looked at, translated back and judged in its own language; one that a stage removes is
replaced by another source until a language has its quota. The stages are functions of what models say, so the same
answers make the same questions; `AskedOnce` is the only part that waits for models, and it asks nothing twice.
"""

from lcrag.methods.translate_r1.pipeline.account import account
from lcrag.methods.translate_r1.pipeline.asking import Ask, AskedOnce, Model
from lcrag.methods.translate_r1.pipeline.filling import Versions, fill_lanes, is_whole
from lcrag.methods.translate_r1.pipeline.judging import JUDGE, Judge
from lcrag.methods.translate_r1.pipeline.lanes import Sources, TranslationQuota, lanes_of, sift, to_translate
from lcrag.methods.translate_r1.pipeline.models import CompleterModel, EndpointModel
from lcrag.methods.translate_r1.pipeline.recycling import Tried
from lcrag.methods.translate_r1.pipeline.rendering import TRANSLATOR, ExactRendering, PromptedRendering
from lcrag.methods.translate_r1.pipeline.stages import STAGES, Attempt, Stages
from lcrag.methods.translate_r1.pipeline.thresholds import Thresholds

__all__ = [
    "JUDGE",
    "STAGES",
    "TRANSLATOR",
    "Ask",
    "AskedOnce",
    "Attempt",
    "CompleterModel",
    "EndpointModel",
    "ExactRendering",
    "Judge",
    "TranslationQuota",
    "Model",
    "PromptedRendering",
    "Sources",
    "Stages",
    "Thresholds",
    "Tried",
    "Versions",
    "account",
    "fill_lanes",
    "is_whole",
    "lanes_of",
    "sift",
    "to_translate",
]
