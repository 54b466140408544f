"""The exact translator of constructed languages: a look-up in both directions."""

from collections.abc import Iterable, Sequence

from lcrag.data.constructed.language import CONSTRUCTED, ENGLISH, constructed_language
from lcrag.data.constructed.words import words_of
from lcrag.episodes.requests import TranslationFailure

# A text is in the language that most of its words belong to, if those are at least so many; names belong to none.
LEAST_SHARE = 0.5


class LookUpTranslator:
    """Translates between English and the constructed languages, without noise; an `lcrag.episodes.Translator`.

    What is in another language, or wanted in one, is a failure, which `FirstTranslator` hands to the next translator.

    Args:
      vocabulary: The English words that the languages have words for.
      codes: Of the constructed languages.

    Raises:
      UserError: there is no such language.
    """

    def __init__(self, vocabulary: Iterable[str], codes: Sequence[str] = tuple(CONSTRUCTED)):
        words = list(vocabulary)
        self._tables = {code: constructed_language(code).over(words) for code in codes}
        self._words = {ENGLISH: {word for table in self._tables.values() for word in table.words}} | {
            code: set(table.words.values()) for code, table in self._tables.items()
        }

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that it translates between."""
        return tuple(self._words)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[str | TranslationFailure]:
        """The texts in the language `target`, in equal order.

        Args:
          texts: What to translate.
          source: Code of their language; None: each text's is found out.
          target: Code of the language wanted.
        """
        return [self._translated(text, source, target) for text in texts]

    def language_of(self, text: str) -> str | None:
        """The language of a text, English where it has no words; None if it is in none of `languages`."""
        words = words_of(text)
        known = {code: sum(word in own for word in words) for code, own in self._words.items()}
        best = max(known, key=lambda code: known[code])
        return best if known[best] >= LEAST_SHARE * len(words) else None

    def _translated(self, text: str, source: str | None, target: str) -> str | TranslationFailure:
        own = self.language_of(text) if source is None else source
        if own not in self._words or target not in self._words:
            return TranslationFailure(f"a look-up translates between {', '.join(self._words)} only")
        if own == target:
            return text
        english = text if own == ENGLISH else self._tables[own].english(text)
        return english if target == ENGLISH else self._tables[target].constructed(english)
