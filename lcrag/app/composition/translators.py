"""Translators, as gin builds them; see `domains` for the look-up."""

import gin

from lcrag.models import FirstTranslator, ModelTranslator, RememberedTranslator, TranslationCache
from lcrag.models.translation_service import RemoteTranslator, TranslationLimits

gin.external_configurable(FirstTranslator, module="lcrag.data")
gin.external_configurable(ModelTranslator, module="lcrag.episodes")
gin.external_configurable(RememberedTranslator, module="lcrag.data")
gin.external_configurable(RemoteTranslator, module="lcrag.data")
gin.external_configurable(TranslationCache, module="lcrag.data")
gin.register(TranslationLimits, module="lcrag.data")
