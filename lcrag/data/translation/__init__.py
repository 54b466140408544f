"""Language versions of questions that were asked in one language only.

A translator is any callable `(texts, source, target) -> texts`. `TranslationCache` remembers what one said, in a file
that survives a kill, and `parallel_versions` asks it for every question in every language.
"""

from lcrag.data.translation.cache import TranslationCache
from lcrag.data.translation.endpoint import EndpointTranslator
from lcrag.data.translation.versions import Translator, parallel_versions

__all__ = ["EndpointTranslator", "TranslationCache", "Translator", "parallel_versions"]
