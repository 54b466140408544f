"""Comprehension questions: sums in stories and choices about countries, in known, half-known and constructed languages.

A placeholder of a sentence is filled with one word, so a sentence can be parsed word by word: `{a}` and `{b}` with
numbers, `{things:a}` with the noun in the form for the number `a`, `{things}` with its form after "how many". `*`
stands for the four options.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from babel import Locale
from babel.core import get_global

from lcrag.atlas.facts import countries, names_of
from lcrag.atlas.wording import wording
from lcrag.atlas.world import World
from lcrag.data.batches import seeded_order
from lcrag.data.constructed import CONSTRUCTED, ENGLISH, constructed_questions, vocabulary_of
from lcrag.data.languages import known_languages
from lcrag.data.questions import MATHEMATICS, MULTIPLE_CHOICE, Question
from lcrag.data.tiers import with_tiers
from lcrag.episodes import Translated, TranslationFailure
from lcrag.errors import UserError
from lcrag.models.translators import LookUpTranslator

NATURAL = ("en", "fr", "it", "fi", "ru")
OPTIONS = "A {first} B {second} C {third} D {fourth}"

_WORDING = wording()["comprehension"]
SENTENCES: Mapping[str, Mapping[str, str]] = {
    language: {kind: sentence.replace("*", OPTIONS) for kind, sentence in sentences.items()}
    for language, sentences in _WORDING["sentences"].items()
}

DIGITS = "2345"
# Feminine in Italian and Russian and without elision in French: the surrounding words never change.
THINGS = ("card", "rose", "coin", "lamp", "bottle", "cup", "shirt", "box", "candle", "pear", "plum", "fork")
BAG = "bag"


# Prefix of a continent's time zones -> CLDR's code of the continent.
CONTINENTS: Mapping[str, str] = {"Africa": "002", "America": "019", "Asia": "142", "Europe": "150", "Pacific": "009"}
OPTION_PLACES = ("first", "second", "third", "fourth")
LEAST_AGREEMENT = 0.7

_PLACE = re.compile(r"(.*)\{(\w+)(?::(\w))?\}(.*)")


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A question independent of its language.

    Attributes:
      kind: Key of its sentence.
      words: Placeholder -> code of its word; a word outside the lexicons is its own code.
    """

    kind: str
    words: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A space-separated part of a sentence: a word, or a placeholder with adjacent characters.

    Attributes:
      before: Characters before the placeholder; for a word, the word.
      place: Name of the placeholder; None for a word.
      count: Placeholder of the number that determines the noun's form, if any.
      after: Characters after the placeholder.
    """

    before: str
    place: str | None = None
    count: str | None = None
    after: str = ""


def sentence_of(meaning: Meaning, language: str) -> str:
    """Returns the question in a natural language."""
    return " ".join(_written(chunk, meaning, language) for chunk in _chunks(language, meaning.kind))


def meaning_of(sentence: str, languages: Sequence[str]) -> Meaning | None:
    """Parses a sentence in one of some natural languages; returns None if it is in none of them or ambiguous."""
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
    """Returns `{code: word}` for a placeholder; `few`: nouns in the form after two, three or four."""
    if place in ("a", "b"):
        return dict(zip(DIGITS, _WORDING["numbers"][language], strict=True))
    if place in ("things", "bags"):
        nouns, few_nouns = _WORDING["nouns"][language], _WORDING["few"].get(language)
        return dict(zip((*THINGS, BAG), few_nouns if few and few_nouns else nouns, strict=True))
    if place in OPTION_PLACES:
        territories = Locale(language).territories
        return {continent: territories[code] for continent, code in CONTINENTS.items()}
    return {code: names[language].text for code, names in names_of("country").items()}


@functools.cache
def _codes(language: str, place: str) -> dict[str, str]:
    """Returns `{lower-case word: code}` for all forms of the words."""
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
    """Returns the share of a sentence's fixed words that match; 0 if the number of words differs."""
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


DATASET = "atlas_comprehension"
KNOWN = ("en", "fr", "it")
# Half-known language -> share of the countries whose names are unknown. A guess is right in one of four choices, so a
# call of the translator gains about .08 for a choice in Finnish, less than a cost of .3, and about .4 in Russian, more.
STRANGE_COUNTRIES: Mapping[str, float] = {"fi": 0.1, "ru": 0.5}
HALF_KNOWN = tuple(STRANGE_COUNTRIES)
TIERS: Mapping[str, tuple[str, ...]] = {"known": KNOWN, "half_known": HALF_KNOWN, "constructed": tuple(CONSTRUCTED)}
LANGUAGES = (*NATURAL, *CONSTRUCTED)
# Shares of the questions; "demonstrations" are for supervised learning, "train" for reinforcement learning.
SPLITS: Mapping[str, float] = {"demonstrations": 0.47, "validation": 0.03, "train": 0.25, "held_out": 0.25}
DOMAINS = (MATHEMATICS, MULTIPLE_CHOICE)
SUMS: Mapping[str, Callable[[int, int], int]] = {"buy": int.__add__, "sell": int.__sub__, "bags": int.__mul__}
CONTINENT = "continent"
LETTERS = "ABCD"
COUNTRIES = 4  # of each continent
OPTION_SETS = 6  # per country and position of the right option


class ComprehensionTasks:
    """The comprehension questions about one world.

    Args:
      world: The atlas, whose seed also draws options and splits.
    """

    def __init__(self, world: World):
        self._world = world

    def questions(
        self,
        split: str,
        languages: Iterable[str] | None = None,
        domains: Sequence[str] = DOMAINS,
        limit: int | None = None,
    ) -> list[Question]:
        """Returns the questions of a split with all language versions adjacent.

        Args:
          split: demonstrations, validation, train or held_out.
          languages: Codes of the languages to ask in; None: all, including the constructed ones.
          domains: mathematics, multiple_choice or both.
          limit: Maximum number of questions of each domain, each in all languages.

        Returns:
          Questions with their domain and tier (known, half_known or constructed), whose `extra` has `kind`, `words`
            (codes of the placeholders' words) and `value` (the sum, or the country's continent).

        Raises:
          UserError: an unknown split, language or domain.
        """
        codes = known_languages(languages, LANGUAGES)
        if unknown := [domain for domain in domains if domain not in DOMAINS]:
            raise UserError(f"the comprehension questions have no domain {unknown[0]!r}: use {' or '.join(DOMAINS)}")
        meanings = [meaning for domain in domains for meaning in self._split(split, domain)[:limit]]
        versions = [self._asked(meanings, code) for code in codes]
        return with_tiers((question for row in zip(*versions, strict=True) for question in row), TIERS)

    @functools.cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word of the English questions, all of which have words in the constructed languages."""
        return tuple(vocabulary_of(sentence_of(meaning, "en") for own in self._meanings.values() for meaning in own))

    def value(self, meaning: Meaning) -> str:
        """Returns the answer independent of its language: a number in digits, or the name of a continent.

        Raises:
          KeyError, ValueError: its words do not make a valid question.
        """
        words = meaning.words
        if meaning.kind in SUMS:
            return str(SUMS[meaning.kind](int(words["a"]), int(words["b"])))
        return self._continents[words["country"]]

    def strange_words(self, language: str) -> frozenset[str]:
        """Returns the codes of the unknown words of a half-known language: one number of the four, and some of the
        countries.
        """
        numbers, countries = (
            [key.partition("/")[2] for key in seeded_order((f"{language}/{code}" for code in codes), self._world.seed)]
            for codes in (DIGITS, self._continents)
        )
        return frozenset((numbers[0], *countries[: round(len(countries) * STRANGE_COUNTRIES[language])]))

    @functools.cached_property
    def _meanings(self) -> dict[str, tuple[Meaning, ...]]:
        return {MATHEMATICS: tuple(_stories()), MULTIPLE_CHOICE: tuple(self._choices())}

    @functools.cached_property
    def _continents(self) -> dict[str, str]:
        """Country -> continent, for a few countries of each with one-word names in every natural language."""
        zones = {
            country: own[0]
            for country in countries()
            if len(own := get_global("territory_zones").get(country, ())) == 1
        }
        found: dict[str, list[str]] = {continent: [] for continent in CONTINENTS}
        for country in seeded_order(filter(_is_one_word, zones), self._world.seed):
            found.get(zones[country].split("/")[0], []).append(country)
        return {country: continent for continent, own in found.items() for country in sorted(own[:COUNTRIES])}

    def _choices(self) -> Iterator[Meaning]:
        """Yields every country with some sets of options, the right one equally often at each position."""
        for country, continent in self._continents.items():
            generator = np.random.default_rng([self._world.seed, 6, *country.encode()])
            wrong = list(itertools.permutations((each for each in CONTINENTS if each != continent), len(LETTERS) - 1))
            for place in range(len(LETTERS)):
                for index in generator.permutation(len(wrong))[:OPTION_SETS]:
                    options = (*wrong[index][:place], continent, *wrong[index][place:])
                    yield Meaning(CONTINENT, {"country": country, **dict(zip(OPTION_PLACES, options, strict=True))})

    def _split(self, split: str, domain: str) -> list[Meaning]:
        if split not in SPLITS:
            raise UserError(f"the comprehension questions have no split {split!r}: use one of {', '.join(SPLITS)}")
        by_id = {_id(meaning): meaning for meaning in self._meanings[domain]}
        order = seeded_order(by_id, self._world.seed)
        bounds = [round(share * len(order)) for share in itertools.accumulate(SPLITS.values(), initial=0.0)]
        place = list(SPLITS).index(split)
        return [by_id[key] for key in order[bounds[place] : bounds[place + 1]]]

    def _asked(self, meanings: Sequence[Meaning], language: str) -> list[Question]:
        if language in CONSTRUCTED:
            return constructed_questions(self._asked(meanings, "en"), (language,), self.vocabulary)
        return [self._question(meaning, language) for meaning in meanings]

    def _question(self, meaning: Meaning, language: str) -> Question:
        value, choice = self.value(meaning), meaning.kind == CONTINENT
        return Question(
            id=_id(meaning),
            dataset=DATASET,
            language=language,
            text=sentence_of(meaning, language),
            answers=(letter_of(meaning, value) if choice else value,),
            extra={
                "domain": MULTIPLE_CHOICE if choice else MATHEMATICS,
                "kind": meaning.kind,
                "words": dict(meaning.words),
                "value": value,
            },
        )


def letter_of(meaning: Meaning, value: str) -> str:
    """Returns the letter of the option with a value.

    Raises:
      ValueError: there is none.
    """
    return LETTERS[[meaning.words[place] for place in OPTION_PLACES].index(value)]


def _stories() -> Iterator[Meaning]:
    """Yields every story with numbers from two to five; a story never sells as much as there is."""
    for kind, thing in itertools.product(SUMS, THINGS):
        for a, b in itertools.product(DIGITS, repeat=2):
            if kind != "sell" or a > b:
                yield Meaning(kind, {"a": a, "b": b, "things": thing})


def _id(meaning: Meaning) -> str:
    return "/".join((meaning.kind, *meaning.words.values()))


def _is_one_word(country: str) -> bool:
    return all(len(lexicon(language, "country")[country].split()) == 1 for language in NATURAL)


class ComprehensionTranslator:
    """Exact translator of the comprehension questions between all their languages; `(texts, source, target) -> texts`.

    It looks up constructed languages word by word and parses natural ones sentence by sentence. The result for any
    other text is a `TranslationFailure`.

    Args:
      tasks: The questions, for their vocabulary.
    """

    def __init__(self, tasks: ComprehensionTasks):
        self._look_up = LookUpTranslator(tasks.vocabulary)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates the texts.

        Args:
          source: Code of their language; None: detected for each text.
          target: Code of the target language.
        """
        if unknown := [code for code in (source, target) if code not in (*LANGUAGES, None)]:
            return [TranslationFailure(f"the translator does not know the language {unknown[0]}")] * len(texts)
        return [self._translated(text, source, target) for text in texts]

    def _translated(self, text: str, source: str | None, target: str) -> Translated:
        language = source or self._look_up.language_of(text)
        if language in CONSTRUCTED:
            [found] = self._look_up([text], language, target if target in CONSTRUCTED else ENGLISH)
            further = isinstance(found, str) and target in NATURAL and target != ENGLISH
            return self._translated(str(found), ENGLISH, target) if further else found
        meaning = meaning_of(text, NATURAL if source is None else (source,))
        if meaning is None:
            return TranslationFailure("the translator cannot parse the text")
        if target in CONSTRUCTED:
            return self._look_up([sentence_of(meaning, ENGLISH)], ENGLISH, target)[0]
        return sentence_of(meaning, target)
