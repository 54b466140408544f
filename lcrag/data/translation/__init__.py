"""Translators, and language versions of questions that were asked in one language only.

A translator is an `lcrag.episodes.Translator`: any callable `(texts, source, target) -> texts`. `TranslationCache`
remembers what one said, in a file that survives a kill, `RememberedTranslator` in memory; `FirstTranslator` asks
several in turn. `EndpointTranslator` and `ModelTranslator` ask models, `RemoteTranslator` a translation service, which
`lcrag.data.translation.service` is. `parallel_versions` asks one for every question in every language.
"""

from lcrag.data.translation.cache import TranslationCache
from lcrag.data.translation.endpoint import EndpointTranslator
from lcrag.data.translation.several import FirstTranslator, RememberedTranslator
from lcrag.data.translation.versions import parallel_versions
from lcrag.episodes import ModelTranslator, Translator

__all__ = [
    "EndpointTranslator",
    "FirstTranslator",
    "ModelTranslator",
    "RememberedTranslator",
    "TranslationCache",
    "Translator",
    "parallel_versions",
]
