"""Models other than the policy: completers, judges and translators.

Public:
  SamplerCompleter, EndpointCompleter: A checkpoint on this machine and a model behind an endpoint, as `Completer`s.
  CompletionJudge: Judges prompts with a completer.
  ModelTranslator, EndpointTranslator, LookUpTranslator: Translate by a model, or exactly in constructed languages.
  FirstTranslator, RememberedTranslator, TranslationCache: Combine translators, and cache in memory or in a file.

`lcrag.models.translation_service` serves a translator over HTTP, and has its client. Training questions are translated
with checks by Translate-R1's pipeline.
"""

from lcrag.models.completers import CompletionJudge, EndpointCompleter, SamplerCompleter
from lcrag.models.translation_cache import TranslationCache
from lcrag.models.translators import (
    EndpointTranslator,
    FirstTranslator,
    LookUpTranslator,
    ModelTranslator,
    RememberedTranslator,
)
