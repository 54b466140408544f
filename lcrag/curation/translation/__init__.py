"""Questions of one language in others, with answers that stay right (Translate-R1, Section 3.2 and Appendix L).

A source is filtered, translated, looked at, translated back and judged in its own language; one that a stage removes is
replaced by another source until a language has its quota. The stages are functions of what models say, so the same
answers make the same questions; `AskedOnce` is the only part that waits for models, and it asks nothing twice.
"""

from lcrag.curation.translation.account import account
from lcrag.curation.translation.asking import Ask, AskedOnce, Model
from lcrag.curation.translation.filling import Versions, fill_lanes, is_whole
from lcrag.curation.translation.judging import JUDGE, Judge
from lcrag.curation.translation.lanes import Lane, Sources, lanes_of, sift, to_translate
from lcrag.curation.translation.models import CompleterModel, EndpointModel
from lcrag.curation.translation.recycling import Tried
from lcrag.curation.translation.rendering import TRANSLATOR, ExactRendering, PromptedRendering
from lcrag.curation.translation.stages import STAGES, Attempt, Stages
from lcrag.curation.translation.thresholds import Thresholds

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
    "Lane",
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
