"""Kivari and Toqal, constructed languages: English with other words (Translate-R1, section 3.4)."""

import dataclasses
import functools
import hashlib
import itertools
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lcrag.data.questions import Question
from lcrag.data.rows import read_text
from lcrag.errors import UserError

# In this order: display and inline mathematics (a dollar sign opens it before a character that is no white space, and
# closes it behind one and not before a digit, so that prices are none), environments, commands, and then any run of
# letters, digits and underscores. Which of them matches where depends on no letter of a word, so that a text whose
# words were replaced is taken apart at the same places.
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


def replaced_words(text: str, replace: Callable[[str], str]) -> str:
    """The text with `replace(word)` in place of each word.

    A word is a run of two or more ASCII letters that touches no other letter, digit or underscore, outside of
    mathematics and commands of LaTeX. A single letter names a variable or an option and is none.
    """
    return _PIECES.sub(lambda match: replace(match[0]) if _WORD.fullmatch(match[0]) else match[0], text)


def words_of(text: str) -> list[str]:
    """The words of a text in their order, in lower case."""
    return [match[0].lower() for match in _PIECES.finditer(text) if _WORD.fullmatch(match[0])]


def vocabulary_of(texts: Iterable[str]) -> list[str]:
    """Every word of some texts once, in lower case, in the alphabet's order."""
    return sorted({word for text in texts for word in words_of(text)})


def read_word_list(path: str | pathlib.Path) -> list[str]:
    """A vocabulary from a file, a word a line, plain or gzipped.

    Raises:
      UserError: the file cannot be read, holds no word, or a line is none.
    """
    path = pathlib.Path(path)
    words = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        word = line.strip().lower()
        if word and not _WORD.fullmatch(word):
            raise UserError(
                f"{path}, line {number}: {line.strip()!r} is no word of two or more letters a to z: mend it"
            )
        words += [word] if word else []
    if not words:
        raise UserError(f"{path} holds no word: give a file with a word a line")
    return sorted(set(words))


def write_word_list(path: str | pathlib.Path, words: Iterable[str]) -> None:
    """Writes a vocabulary as `read_word_list` reads it."""
    pathlib.Path(path).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


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


ENGLISH = "en"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstructedLanguage:
    """A language that is English with other words.

    Attributes:
      code: A code that ISO 639 keeps for private use.
      name: Its name, as a natural language might have it.
      seed: Of its `WordSubstitution`.
    """

    code: str
    name: str
    seed: int

    def over(self, vocabulary: Iterable[str]) -> WordSubstitution:
        """The language's words for a vocabulary."""
        return WordSubstitution(vocabulary, self.seed)


KIVARI = ConstructedLanguage(code="qki", name="Kivari", seed=1)
TOQAL = ConstructedLanguage(code="qto", name="Toqal", seed=2)
CONSTRUCTED = {language.code: language for language in (KIVARI, TOQAL)}


def constructed_language(code: str) -> ConstructedLanguage:
    """The constructed language of a code.

    Raises:
      UserError: there is none.
    """
    if code not in CONSTRUCTED:
        known = ", ".join(f"{each.code} ({each.name})" for each in CONSTRUCTED.values())
        raise UserError(f"there is no constructed language {code!r}: use one of {known}")
    return CONSTRUCTED[code]


def constructed_questions(
    questions: Sequence[Question], codes: Sequence[str], vocabulary: Iterable[str]
) -> list[Question]:
    """English questions in constructed languages, all versions of a question together.

    Only the text is replaced: golden answers and everything in `extra` stay as they are.

    Args:
      questions: English ones.
      codes: Of the constructed languages.
      vocabulary: The English words that the languages have words for; a word that is not among them stays English.

    Raises:
      UserError: a question is not in English, or there is no such language.
    """
    if stranger := next((each for each in questions if each.language != ENGLISH), None):
        raise UserError(
            f"question {stranger.id} of {stranger.dataset} is in {stranger.language!r}: only English questions have"
            " a version in a constructed language"
        )
    words = list(vocabulary)
    tables = {code: constructed_language(code).over(words) for code in codes}
    return [
        dataclasses.replace(question, language=code, text=table.constructed(question.text))
        for question in questions
        for code, table in tables.items()
    ]
