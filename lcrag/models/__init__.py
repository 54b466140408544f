"""Translators: what a tool of episodes, a service and exact data are made with.

A translator is an `lcrag.episodes.Translator`: any callable `(texts, source, target) -> texts`. `TranslationCache`
remembers what one said, in a file that survives a kill, `RememberedTranslator` in memory; `FirstTranslator` asks
several in turn. `EndpointTranslator` and `ModelTranslator` ask models, `RemoteTranslator` a translation service, which
`lcrag.models.translation_service` is. Training questions are translated with checks, by
Translate-R1's pipeline.
"""

from lcrag.models.endpoint_translator import EndpointTranslator
from lcrag.models.model_translator import ModelTranslator
from lcrag.models.several_translators import FirstTranslator, RememberedTranslator
from lcrag.models.translation_cache import TranslationCache

__all__ = [
    "EndpointTranslator",
    "FirstTranslator",
    "ModelTranslator",
    "RememberedTranslator",
    "TranslationCache",
]
