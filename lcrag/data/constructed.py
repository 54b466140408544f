"""Kivari and Toqal, constructed languages: English with substituted words (Translate-R1, section 3.4)."""

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import gin

from lcrag.data.questions import Question, with_tiers
from lcrag.data.rows import read_text
from lcrag.errors import UserError, lookup, typed
from lcrag.files import local_files

# In this order: display and inline mathematics (an opening dollar sign precedes a non-blank character, a closing one
# follows a non-blank character and does not precede a digit, which excludes prices), environments, commands, and runs
# of letters, digits and underscores. Matches do not depend on the letters of words, so a text splits at the same places
# after its words are replaced. A word is a run of two or more ASCII letters that touches no other letter, digit or
# underscore; single letters, which name variables or options, are kept.
_PIECES = re.compile(
    r"""
      \$\$.+?\$\$ | \\\[.+?\\\] | \\\(.+?\\\)
    | (?<![\\$])\$(?=[^\s$])[^$\n]*?(?<=[^\s\\])\$(?!\d)
    | \\(?:begin|end)\{[^}\n]*\} | \\[A-Za-z]+
    | \w+
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z]{2,}")


def words_of(text: str) -> list[str]:
    """Returns the words of a text, in order and in lower case."""
    return [match[0].lower() for match in _PIECES.finditer(text) if _WORD.fullmatch(match[0])]


def vocabulary_of(texts: Iterable[str]) -> list[str]:
    """Returns the distinct words of some texts, sorted and in lower case."""
    return sorted({word for text in texts for word in words_of(text)})


CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class WordSubstitution:
    """A permutation of all words that maps each word of a vocabulary to its constructed word.

    Constructed words outside the vocabulary are mapped to vocabulary words that are not constructed words; all other
    words are mapped to themselves. The inverse therefore restores every text exactly.
    """

    def __init__(self, vocabulary: Iterable[str], seed: int):
        self.words: dict[str, str] = {}  # English word -> constructed word, in lower case
        for length, group in itertools.groupby(_by_length(vocabulary_of(vocabulary)), key=len):
            # Syllables while there are any, none of which is an English word while there are enough; then any letters.
            words = list(group)
            english = set(words)
            shape = tuple(VOWELS if place % 3 == 1 else CONSONANTS for place in range(length))
            syllables = math.prod(map(len, shape))
            nonsense = syllables - sum(all(map(str.__contains__, shape, word)) for word in words)
            taken: set[str] = set()
            for place, word in enumerate(words):
                alphabets = shape if place < syllables else (LETTERS,) * length
                unwanted = english if place < nonsense else ()
                for attempt in itertools.count():
                    number = int.from_bytes(hashlib.sha256(f"{seed}/{attempt}/{word}".encode()).digest())
                    drawn = ""
                    for alphabet in alphabets:
                        number, index = divmod(number, len(alphabet))
                        drawn += alphabet[index]
                    if drawn not in taken and drawn not in unwanted:
                        taken.add(drawn)
                        self.words[word] = drawn
                        break
        codes = set(self.words.values())
        strangers, uncovered = codes - self.words.keys(), self.words.keys() - codes  # of equal lengths
        self._forward = self.words | dict(zip(_by_length(strangers), _by_length(uncovered), strict=True))
        self._backward = {code: word for word, code in self._forward.items()}

    def constructed(self, text: str) -> str:
        """Translates an English text into the constructed language and preserves the case of every letter."""
        return _replaced(text, self._forward)

    def english(self, text: str) -> str:
        """Inverts `constructed` exactly."""
        return _replaced(text, self._backward)


def _replaced(text: str, table: Mapping[str, str]) -> str:
    def replace(piece: re.Match) -> str:
        word = piece[0]
        if not _WORD.fullmatch(word):
            return word
        letters = zip(word, table.get(word.lower(), word.lower()), strict=True)
        return "".join(new.upper() if old.isupper() else new for old, new in letters)

    return _PIECES.sub(replace, text)


def _by_length(words: Iterable[str]) -> list[str]:
    return sorted(words, key=lambda word: (len(word), word))


ENGLISH = "en"
# Code, from ISO 639's range for private use -> seed: Kivari and Toqal.
CONSTRUCTED: Mapping[str, int] = {"qki": 1, "qto": 2}


def substitution(code: str, vocabulary: Iterable[str]) -> WordSubstitution:
    return WordSubstitution(vocabulary, lookup(CONSTRUCTED, code, "constructed language"))


@gin.configurable
@typed
def english_vocabulary(questions: Sequence[Question] = (), file: str | None = None) -> list[str]:
    """Returns the English words that constructed languages can translate.

    Questions in constructed languages and their translator must use the same vocabulary.

    Args:
      questions: Questions; the words of the English ones are used.
      file: A file with one word per line, plain or gzipped, in addition to the words of the questions.
    """
    words = vocabulary_of(question.text for question in questions if question.language == ENGLISH)
    for number, line in enumerate(read_text(local_files(file)).split("\n") if file else (), start=1):
        if (word := line.strip().lower()) and not _WORD.fullmatch(word):
            raise UserError(f"{file}, line {number}: {word!r} is not a word of two or more letters a to z: correct it")
        words += [word] if word else []
    if not words:
        raise UserError("english_vocabulary has no words: give it English questions, or a file with a word a line")
    return sorted(set(words))


def into_constructed(questions: Iterable[Question], codes: Sequence[str], vocabulary: Iterable[str]) -> list[Question]:
    """Translates the texts of the English questions among some; versions of a question are adjacent."""
    words = list(vocabulary)
    substitutions = {code: substitution(code, words) for code in codes}
    return [
        dataclasses.replace(question, language=code, text=table.constructed(question.text))
        for question in questions
        if question.language == ENGLISH
        for code, table in substitutions.items()
    ]


@gin.configurable
@typed
def constructed_questions(
    questions: Sequence[Question],
    vocabulary: Sequence[str],
    languages: Sequence[str] = tuple(CONSTRUCTED),
    tier: str = "synthetic",
) -> list[Question]:
    """Translates the words of a vocabulary in the English questions among some, and adds the languages' tier."""
    return with_tiers(into_constructed(questions, languages, vocabulary), {tier: languages})
