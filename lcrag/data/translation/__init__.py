"""Translators: what a tool of episodes, a service and exact data are made with.

A translator is an `lcrag.episodes.Translator`: any callable `(texts, source, target) -> texts`. `TranslationCache`
remembers what one said, in a file that survives a kill, `RememberedTranslator` in memory; `FirstTranslator` asks
several in turn. `EndpointTranslator` and `ModelTranslator` ask models, `RemoteTranslator` a translation service, which
`lcrag.data.translation.service` is. Training questions are translated with checks, by `lcrag.curation.translation`.
"""

from lcrag.data.translation.cache import TranslationCache
from lcrag.data.translation.endpoint import EndpointTranslator
from lcrag.data.translation.several import FirstTranslator, RememberedTranslator
from lcrag.episodes import ModelTranslator, Translator

__all__ = [
    "EndpointTranslator",
    "FirstTranslator",
    "ModelTranslator",
    "RememberedTranslator",
    "TranslationCache",
    "Translator",
]
