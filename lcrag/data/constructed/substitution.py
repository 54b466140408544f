"""A one-to-one replacement of English words by words of nonsense syllables (Translate-R1, section 3.4).

Each word of the vocabulary gets a word of the same length out of consonant-vowel-consonant syllables, the last syllable
cut where the length is no multiple of three: "go" has two letters and becomes a consonant and a vowel. Words are drawn
by the SHA-256 of seed and word; a drawn word that is taken is drawn again, so no two words share one. Words that
are English ones are drawn last. There are 105 such words of two letters and 2,205 of three: where the vocabulary
has more words of a length, the rest get other strings of letters, of which there are always enough, since the
vocabulary's words are such strings themselves.
"""

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lcrag.data.constructed.words import replaced_words, vocabulary_of

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class WordSubstitution:
    """A permutation of all words that sends each word of a vocabulary to its constructed one.

    The constructed words that are no words of the vocabulary are sent to those of the vocabulary that are not
    constructed ones, and all others to themselves. So every text, whichever words it has, comes back exactly.

    Args:
      vocabulary: Words, in any order and case.
      seed: Names the replacement.
    """

    def __init__(self, vocabulary: Iterable[str], seed: int):
        self._constructed: dict[str, str] = {}
        for _, own in itertools.groupby(_by_length(vocabulary_of(vocabulary)), key=len):
            self._constructed |= _constructed_words(list(own), seed)
        codes = set(self._constructed.values())
        strangers, uncovered = codes - self._constructed.keys(), self._constructed.keys() - codes  # of equal lengths
        self._forward = self._constructed | dict(zip(_by_length(strangers), _by_length(uncovered), strict=True))
        self._backward = {code: word for word, code in self._forward.items()}

    @property
    def words(self) -> Mapping[str, str]:
        """English word -> constructed word, in lower case."""
        return self._constructed

    def constructed(self, text: str) -> str:
        """An English text in the constructed language; the case of every letter is kept."""
        return replaced_words(text, functools.partial(_replaced, self._forward))

    def english(self, text: str) -> str:
        """The exact inverse of `constructed`."""
        return replaced_words(text, functools.partial(_replaced, self._backward))


def _by_length(words: Iterable[str]) -> list[str]:
    return sorted(words, key=lambda word: (len(word), word))


def _replaced(table: Mapping[str, str], word: str) -> str:
    found = table.get(word.lower(), word.lower())
    return "".join(new.upper() if old.isupper() else new for old, new in zip(word, found, strict=True))


def _constructed_words(words: Sequence[str], seed: int) -> dict[str, str]:
    """Word -> constructed word, for all words of one length."""
    english, length = set(words), len(words[0])
    shape = tuple(VOWELS if place % 3 == 1 else CONSONANTS for place in range(length))
    syllables = math.prod(map(len, shape))
    nonsense = syllables - sum(all(map(str.__contains__, shape, word)) for word in words)
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        alphabets = shape if place < syllables else (LETTERS,) * length
        unwanted = english if place < nonsense else ()
        drawn = next(each for each in _draws(word, seed, alphabets) if each not in found and each not in unwanted)
        found[drawn] = word
    return {word: drawn for drawn, word in found.items()}


def _draws(word: str, seed: int, alphabets: Sequence[str]) -> Iterator[str]:
    """Strings with a letter of each alphabet, without end."""
    for attempt in itertools.count():
        number = int.from_bytes(hashlib.sha256(f"{seed}/{attempt}/{word}".encode()).digest())
        letters = []
        for alphabet in alphabets:
            number, place = divmod(number, len(alphabet))
            letters.append(alphabet[place])
        yield "".join(letters)
