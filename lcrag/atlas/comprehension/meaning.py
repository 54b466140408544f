"""What a comprehension question means apart from any language, and its sentence in each.

Reading a sentence back forgives words that were copied wrongly: the sentence is the one that agrees with most of the
words around the places, and a word that no entry of the language's lexicon explains stays as it was written.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from babel import Locale

from lcrag.atlas.comprehension.sentences import BAG, SENTENCES, noun_words, number_words
from lcrag.atlas.names import names_of

# CLDR's codes of the continents, by the name that the zone database gives to most of their time zones.
CONTINENTS: Mapping[str, str] = {"Africa": "002", "America": "019", "Asia": "142", "Europe": "150", "Pacific": "009"}
OPTION_PLACES = ("first", "second", "third", "fourth")
LEAST_AGREEMENT = 0.7

_PLACE = re.compile(r"(.*)\{(\w+)(?::(\w))?\}(.*)")


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A question apart from its language.

    Attributes:
      kind: Key of its sentence.
      words: Place -> code of what stands there; a word that is in no lexicon stands for itself.
    """

    kind: str
    words: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """What stands between two spaces of a sentence: a word, or a place with what touches it.

    Attributes:
      before: What touches the place on its left; of a word, the word.
      place: The place's name, None of a word.
      count: The place of the number that its noun goes with, if there is one.
      after: What touches it on its right.
    """

    before: str
    place: str | None = None
    count: str | None = None
    after: str = ""


def sentence_of(meaning: Meaning, language: str) -> str:
    """The question in a natural language."""
    return " ".join(_written(chunk, meaning, language) for chunk in _chunks(language, meaning.kind))


def meaning_of(sentence: str, languages: Sequence[str]) -> Meaning | None:
    """What a sentence means that is in one of some natural languages; None if it is in none, or could be two."""
    words = sentence.split()
    agreements = {
        (language, kind): _agreement(words, _chunks(language, kind))
        for language in languages
        for kind in SENTENCES[language]
    }
    best = max(agreements.values(), default=0.0)
    found = [where for where, agreement in agreements.items() if agreement == best]
    if best < LEAST_AGREEMENT or len(found) > 1:
        return None
    [(language, kind)] = found
    return Meaning(kind, _read_places(words, kind, language))


@functools.cache
def lexicon(language: str, place: str, *, few: bool = False) -> Mapping[str, str]:
    """`{code: word}` of what may stand at a place of a sentence.

    Args:
      language: A natural language.
      place: Name of the place.
      few: Of nouns, the form behind two, three or four.
    """
    if place in ("a", "b"):
        return number_words(language)
    if place in ("things", "bags"):
        return noun_words(language, few=few)
    if place in OPTION_PLACES:
        territories = Locale(language).territories
        return {continent: territories[code] for continent, code in CONTINENTS.items()}
    return {code: names[language].text for code, names in names_of("country").items()}


@functools.cache
def _codes(language: str, place: str) -> dict[str, str]:
    """`{word in lower case: code}`, every form of it."""
    forms = [*lexicon(language, place).items(), *lexicon(language, place, few=True).items()]
    return {word.casefold(): code for code, word in forms}


@functools.cache
def _chunks(language: str, kind: str) -> tuple[_Chunk, ...]:
    return tuple(
        _Chunk(*place.groups()) if (place := _PLACE.fullmatch(chunk)) else _Chunk(chunk)
        for chunk in SENTENCES[language][kind].split()
    )


def _written(chunk: _Chunk, meaning: Meaning, language: str) -> str:
    if chunk.place is None:
        return chunk.before
    code = meaning.words.get(chunk.place, BAG)
    few = chunk.count is not None and meaning.words[chunk.count] in "234"
    return chunk.before + lexicon(language, chunk.place, few=few).get(code, code) + chunk.after


def _agreement(words: Sequence[str], chunks: Sequence[_Chunk]) -> float:
    """The share of a sentence's own words that stand where they should; 0 of another number of words."""
    if len(words) != len(chunks):
        return 0.0
    own = [word == chunk.before for word, chunk in zip(words, chunks, strict=True) if chunk.place is None]
    return sum(own) / len(own)


def _read_places(words: Sequence[str], kind: str, language: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, chunk in zip(words, _chunks(language, kind), strict=True):
        if chunk.place is None or chunk.place == "bags":
            continue
        bare = word.removeprefix(chunk.before).removesuffix(chunk.after)
        known = _codes(language, chunk.place).get(bare.casefold())
        if known is not None or chunk.place not in found:
            found[chunk.place] = bare if known is None else known
    return found
