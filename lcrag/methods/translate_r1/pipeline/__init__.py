"""Answer-preserving translation of questions into other languages (Translate-R1, section 3.2 and appendix L).

A source is filtered, translated, checked, translated back and judged; one that a stage removes is replaced by another
source until a language has its quota. The stages are functions of the models' answers, so that equal answers give equal
questions; `RequestCache` alone waits for models, and sends no request twice.

    models    requests, their cache, and models behind an endpoint or on this machine
    domains   rules of each domain
    parts     the parts of a question, and the questions made of their translations
    prompts   of the translator and the judge
    checks    source filter, heuristics, verdicts, and all thresholds
    stages    translation, heuristics, back-translation and judge of one source in one language
    quotas    sources for each language, and recycling
    report    rows, counts and tables
"""

from lcrag.methods.translate_r1.pipeline.checks import Thresholds
from lcrag.methods.translate_r1.pipeline.models import (
    JUDGE,
    TRANSLATOR,
    CompleterModel,
    EndpointModel,
    Model,
    ModelRequest,
    RequestCache,
)
from lcrag.methods.translate_r1.pipeline.quotas import (
    Sources,
    TranslationQuota,
    Tried,
    Versions,
    fill_quotas,
    filter_sources,
    languages_to_translate,
    quotas_of,
)
from lcrag.methods.translate_r1.pipeline.report import attempt_rows, question_rows, report_tables, translation_report
from lcrag.methods.translate_r1.pipeline.stages import STAGES, ExactRendering, Judge, PromptedRendering, Stages

__all__ = [
    "JUDGE",
    "STAGES",
    "TRANSLATOR",
    "CompleterModel",
    "EndpointModel",
    "ExactRendering",
    "Judge",
    "Model",
    "ModelRequest",
    "PromptedRendering",
    "RequestCache",
    "Sources",
    "Stages",
    "Thresholds",
    "TranslationQuota",
    "Tried",
    "Versions",
    "attempt_rows",
    "fill_quotas",
    "filter_sources",
    "languages_to_translate",
    "question_rows",
    "quotas_of",
    "report_tables",
    "translation_report",
]
