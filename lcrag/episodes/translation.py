"""Translations that episodes ask for: who makes them, and how many are made with few calls.

Translators live in `lcrag.models` (models, services, caches) and `lcrag.data.constructed` (the exact
look-up); any function of this form is one.
"""

import functools
from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from lcrag.episodes.requests import Translate, TranslationFailure
from lcrag.episodes.retrying import ONCE, Failed, Retries, attempted

Translated: TypeAlias = str | TranslationFailure


@runtime_checkable
class Translator(Protocol):
    """Translates texts. Threads may share one.

    What it cannot do for one text (a language that it does not know, say) is a `TranslationFailure` in the place of
    that text, and never an empty one. What it raises concerns the whole call: a `UserError` ends the run, since trying
    again does not help; anything else is tried again.
    """

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> Sequence[Translated]:
        """The texts in the language `target`, in equal order.

        Args:
          texts: What to translate.
          source: Code of their language; None: the translator finds it out, of each text for itself.
          target: Code of the language wanted.
        """


def answer_translations(translator: Translator, requests: Sequence[Translate], retries: Retries) -> list[Translated]:
    """Answers many requests with one call for each pair of languages, each distinct text translated once.

    When every attempt of a call has failed, each text is tried alone, so that one that cannot be translated fails
    alone.
    """
    wanted: dict[tuple[str | None, str], dict[str, None]] = {}
    for request in requests:
        wanted.setdefault((request.source, request.target), {})[request.text] = None
    answers = {
        (source, target): _answers(translator, list(texts), source, target, retries)
        for (source, target), texts in wanted.items()
    }
    return [answers[request.source, request.target][request.text] for request in requests]


def _answers(
    translator: Translator, texts: Sequence[str], source: str | None, target: str, retries: Retries
) -> dict[str, Translated]:
    together = functools.partial(_translated, translator, texts, source, target)
    answers = attempted(together, retries, f"translation of {len(texts)} texts")
    if not isinstance(answers, Failed):
        return answers
    if len(texts) == 1:
        return {texts[0]: TranslationFailure(answers.reason)}
    return {text: _answers(translator, [text], source, target, ONCE)[text] for text in texts}


def _translated(translator: Translator, texts: Sequence[str], source: str | None, target: str) -> dict[str, Translated]:
    answers = translator(texts, source, target)
    if len(answers) != len(texts):
        raise RuntimeError(f"the translator answered {len(answers)} of {len(texts)} texts")
    return {text: _never_empty(answer) for text, answer in zip(texts, answers, strict=True)}


def _never_empty(answer: Translated) -> Translated:
    return TranslationFailure("an empty translation") if isinstance(answer, str) and not answer.strip() else answer
