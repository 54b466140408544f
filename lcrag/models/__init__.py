"""Models other than the policy: completers, judges and translators.

Public:
  SamplerCompleter, EndpointCompleter: `Completer`s over a checkpoint on this machine and over a model at an endpoint.
  CompletionJudge: Judges prompts with a completer.
  ModelTranslator, EndpointTranslator: Translate by a model.
  LookUpTranslator, TranslationMemory: Translate exactly: constructed languages, and questions known in both languages.
  FirstTranslator, RememberedTranslator: Combine translators, and remember translations.
  RemoteTranslator: Asks a translator that `lcrag serve` offers.

To translate training questions with quality checks, see `lcrag.methods.translate_r1.pipeline`.
"""

from lcrag.models.completers import CompletionJudge, EndpointCompleter, SamplerCompleter
from lcrag.models.translators import (
    EndpointTranslator,
    FirstTranslator,
    LookUpTranslator,
    ModelTranslator,
    RememberedTranslator,
    RemoteTranslator,
    TranslationMemory,
)
