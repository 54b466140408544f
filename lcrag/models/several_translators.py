"""Translators made of others: one that remembers, and one that asks several in turn."""

import threading
from collections.abc import Sequence

import cachetools

from lcrag.episodes import Translated, TranslationFailure, Translator
from lcrag.errors import UserError


class RememberedTranslator:
    """Asks another translator once for each text, and remembers its translations while there is room.

    What it does not translate is asked again. `TranslationCache` remembers in a file, beyond the process.

    Args:
      translator: Whom to ask.
      texts: Most translations that are remembered.

    Raises:
      UserError: nothing could be remembered.
    """

    def __init__(self, translator: Translator, texts: int = 1 << 16):
        if texts < 1:
            raise UserError(f"RememberedTranslator.texts is {texts}: give it a value of 1 or more")
        self._translator, self._lock = translator, threading.Lock()
        self._known: cachetools.LRUCache[tuple[str | None, str, str], str] = cachetools.LRUCache(texts)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """The texts in the language `target`."""
        distinct = list(dict.fromkeys(texts))
        with self._lock:
            known = {text: self._known.get((source, target, text)) for text in distinct}
        answers: dict[str, Translated] = {text: answer for text, answer in known.items() if answer is not None}
        missing = [text for text in distinct if text not in answers]
        if missing:
            answers |= zip(missing, self._translator(missing, source, target), strict=True)
            with self._lock:
                for text in missing:
                    if isinstance(answer := answers[text], str):
                        self._known[source, target, text] = answer
        return [answers[text] for text in texts]


class FirstTranslator:
    """Asks several translators in turn: each gets the texts that those before it do not translate.

    So constructed languages are looked up, and all others translated by a model.

    Args:
      translators: In the order in which they are asked.

    Raises:
      UserError: there is none.
    """

    def __init__(self, translators: Sequence[Translator]):
        if not translators:
            raise UserError("FirstTranslator.translators is empty: name at least one translator")
        self._translators = tuple(translators)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """The texts in the language `target`; a text that nobody translates has the last one's failure."""
        answers: list[Translated] = list(self._translators[0](texts, source, target))
        for translator in self._translators[1:]:
            places = [place for place, answer in enumerate(answers) if isinstance(answer, TranslationFailure)]
            if not places:
                break
            again = translator([texts[place] for place in places], source, target)
            for place, answer in zip(places, again, strict=True):
                answers[place] = answer
        return answers
