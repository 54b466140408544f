"""Comprehension questions: sums in stories and choices about countries, in known, half-known and constructed languages.

A placeholder of a sentence is filled with one word, so a sentence can be parsed word by word: `{a}` and `{b}` with
numbers, `{things:a}` with the noun in the form for the number `a`, `{things}` with its form after "how many". `*`
stands for the four options.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import gin
import numpy as np

from lcrag.atlas.facts import CONTINENTS, names_of, shipped, wording
from lcrag.atlas.world import World, atlas_world
from lcrag.data.constructed import CONSTRUCTED, ENGLISH, into_constructed, vocabulary_of
from lcrag.data.questions import MATHEMATICS, MULTIPLE_CHOICE, Question, known_languages, seeded_order, with_tiers
from lcrag.episodes import Translated, TranslationFailure
from lcrag.errors import Count, lookup, typed
from lcrag.models.translators import LookUpTranslator

DATASET = "atlas_comprehension"
NATURAL = ("en", "fr", "it", "fi", "ru")
KNOWN = ("en", "fr", "it")
# Half-known language -> share of the countries whose names are unknown. A guess is right in one of four choices, so a
# call of the translator gains about 0.08 for a choice in Finnish, less than a cost of 0.3, and about 0.4 in Russian.
STRANGE_COUNTRIES: Mapping[str, float] = {"fi": 0.1, "ru": 0.5}
HALF_KNOWN = tuple(STRANGE_COUNTRIES)
TIERS: Mapping[str, tuple[str, ...]] = {"known": KNOWN, "half_known": HALF_KNOWN, "constructed": tuple(CONSTRUCTED)}
LANGUAGES = (*NATURAL, *CONSTRUCTED)
# Shares of the questions; "demonstrations" are for supervised learning, "train" for reinforcement learning.
SPLITS: Mapping[str, float] = {"demonstrations": 0.47, "validation": 0.03, "train": 0.25, "held_out": 0.25}
DOMAINS = (MATHEMATICS, MULTIPLE_CHOICE)

_WORDING = wording()["comprehension"]
SENTENCES: Mapping[str, Mapping[str, str]] = {
    language: {
        kind: sentence.replace("*", "A {first} B {second} C {third} D {fourth}") for kind, sentence in sentences.items()
    }
    for language, sentences in _WORDING["sentences"].items()
}
DIGITS = "2345"
# Feminine in Italian and Russian and without elision in French: the surrounding words never change.
THINGS = ("card", "rose", "coin", "lamp", "bottle", "cup", "shirt", "box", "candle", "pear", "plum", "fork")
BAG = "bag"
SUMS: Mapping[str, Callable[[int, int], int]] = {"buy": int.__add__, "sell": int.__sub__, "bags": int.__mul__}
CONTINENT = "continent"
COUNTRIES = 4  # of each continent
LETTERS, OPTION_PLACES = "ABCD", ("first", "second", "third", "fourth")
OPTION_SETS = 6  # per country and position of the right option
MIN_AGREEMENT = 0.7

_PLACE = re.compile(r"(.*)\{(\w+)(?::(\w))?\}(.*)")


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A question independent of its language."""

    kind: str  # key of its sentence
    words: Mapping[str, str]  # placeholder -> code of its word; a word outside the lexicons is its own code

    @property
    def id(self) -> str:
        return "/".join((self.kind, *self.words.values()))


class _Chunk(NamedTuple):
    """A space-separated part of a sentence: a word, or a placeholder with adjacent characters."""

    before: str  # characters before the placeholder; for a word, the word
    place: str | None = None  # name of the placeholder
    number: str | None = None  # placeholder of the number that determines the noun's form
    after: str = ""


@functools.cache
def _chunks(language: str, kind: str) -> tuple[_Chunk, ...]:
    return tuple(
        _Chunk(*place.groups()) if (place := _PLACE.fullmatch(chunk)) else _Chunk(chunk)
        for chunk in SENTENCES[language][kind].split()
    )


@functools.cache
def lexicon(language: str, place: str, *, few: bool = False) -> Mapping[str, str]:
    """Returns `{code: word}` for a placeholder; `few`: nouns in the form after two, three or four."""
    if place in ("a", "b"):
        return dict(zip(DIGITS, _WORDING["numbers"][language], strict=True))
    if place in ("things", "bags"):
        nouns, few_nouns = _WORDING["nouns"][language], _WORDING["few"].get(language)
        return dict(zip((*THINGS, BAG), few_nouns if few and few_nouns else nouns, strict=True))
    if place in OPTION_PLACES:
        return shipped()["continent_names"][language]
    return {code: names[language].text for code, names in names_of("country").items()}


@functools.cache
def _codes(language: str, place: str) -> dict[str, str]:
    """Returns `{lower-case word: code}` for all forms of the words."""
    forms = [*lexicon(language, place).items(), *lexicon(language, place, few=True).items()]
    return {word.casefold(): code for code, word in forms}


def sentence_of(meaning: Meaning, language: str) -> str:
    """Returns the question in a natural language."""
    words = []
    for chunk in _chunks(language, meaning.kind):
        word = ""
        if chunk.place is not None:
            code = meaning.words.get(chunk.place, BAG)
            few = chunk.number is not None and meaning.words[chunk.number] in "234"
            word = lexicon(language, chunk.place, few=few).get(code, code)
        words.append(chunk.before + word + chunk.after)
    return " ".join(words)


def meaning_of(sentence: str, languages: Sequence[str]) -> Meaning | None:
    """Parses a sentence in one of some natural languages; returns None if it is in none of them or ambiguous."""
    words = sentence.split()
    agreements = {}  # (language, kind) -> share of the sentence's fixed words that match
    for language in languages:
        for kind in SENTENCES[language]:
            chunks = _chunks(language, kind)
            fixed = [word == chunk.before for word, chunk in zip(words, chunks, strict=False) if chunk.place is None]
            agreements[language, kind] = sum(fixed) / len(fixed) if len(words) == len(chunks) else 0.0
    best = max(agreements.values(), default=0.0)
    likely = [which for which, agreement in agreements.items() if agreement == best]
    if best < MIN_AGREEMENT or len(likely) > 1:
        return None
    [(language, kind)] = likely
    codes: dict[str, str] = {}
    for word, chunk in zip(words, _chunks(language, kind), strict=True):
        if chunk.place is None or chunk.place == "bags":
            continue
        bare = word.removeprefix(chunk.before).removesuffix(chunk.after)
        known = _codes(language, chunk.place).get(bare.casefold())
        # Of two places with the same name, the word that is known counts.
        if known is not None or chunk.place not in codes:
            codes[chunk.place] = bare if known is None else known
    return Meaning(kind, codes)


def letter_of(meaning: Meaning, value: str) -> str:
    """Returns the letter of the option with a value; raises a ValueError if it is not among the options."""
    return LETTERS[[meaning.words[place] for place in OPTION_PLACES].index(value)]


class ComprehensionTasks:
    """The comprehension questions about one world, whose seed also draws options and splits."""

    def __init__(self, world: World):
        self._seed = world.seed

    def questions(
        self,
        split: str,
        languages: Iterable[str] | None = None,
        domains: Sequence[str] = DOMAINS,
        limit: int | None = None,
    ) -> list[Question]:
        """Returns the questions of a split with their tiers, all language versions adjacent.

        `extra` has `kind`, `words` (codes of the placeholders' words) and `value` (the sum, or the continent).

        Args:
          split: demonstrations, validation, train or held_out.
          languages: Codes of the languages to ask in; None: all, including the constructed ones.
          limit: Maximum number of questions of each domain, each in all languages.
        """
        codes = known_languages(languages, LANGUAGES)
        lookup(SPLITS, split, "split of the comprehension questions")
        for domain in domains:
            lookup(dict.fromkeys(DOMAINS), domain, "domain of the comprehension questions")
        meanings: list[Meaning] = []
        for domain in domains:
            by_id = {meaning.id: meaning for meaning in self._meanings[domain]}
            order = seeded_order(by_id, self._seed)
            bounds = [round(share * len(order)) for share in itertools.accumulate(SPLITS.values(), initial=0.0)]
            place = list(SPLITS).index(split)
            meanings += [by_id[id] for id in order[bounds[place] : bounds[place + 1]][:limit]]
        english = [self._question(meaning, ENGLISH) for meaning in meanings]
        versions = [
            into_constructed(english, (code,), self.vocabulary)
            if code in CONSTRUCTED
            else [self._question(meaning, code) for meaning in meanings]
            for code in codes
        ]
        return with_tiers((question for row in zip(*versions, strict=True) for question in row), TIERS)

    def _question(self, meaning: Meaning, language: str) -> Question:
        value, choice = self.value(meaning), meaning.kind == CONTINENT
        answer, domain = (letter_of(meaning, value), MULTIPLE_CHOICE) if choice else (value, MATHEMATICS)
        names = {"id": meaning.id, "dataset": DATASET, "language": language, "text": sentence_of(meaning, language)}
        extra = {"domain": domain, "kind": meaning.kind, "words": dict(meaning.words), "value": value}
        return Question(**names, answers=(answer,), extra=extra)

    @functools.cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word of the English questions, all of which have words in the constructed languages."""
        meanings = itertools.chain.from_iterable(self._meanings.values())
        return tuple(vocabulary_of(sentence_of(meaning, ENGLISH) for meaning in meanings))

    def value(self, meaning: Meaning) -> str:
        """Returns the answer independent of its language: a number in digits, or the name of a continent."""
        words = meaning.words
        if meaning.kind in SUMS:
            return str(SUMS[meaning.kind](int(words["a"]), int(words["b"])))
        return self._continents[words["country"]]

    def strange_words(self, language: str) -> frozenset[str]:
        """Returns the codes of the unknown words of a half-known language: one number of the four, and some of the
        countries.
        """
        numbers, countries = (
            [key.partition("/")[2] for key in seeded_order((f"{language}/{code}" for code in codes), self._seed)]
            for codes in (DIGITS, self._continents)
        )
        return frozenset((numbers[0], *countries[: round(len(countries) * STRANGE_COUNTRIES[language])]))

    @functools.cached_property
    def _meanings(self) -> dict[str, tuple[Meaning, ...]]:
        # Stories with numbers from two to five; a story never sells as much as there is.
        stories = (
            Meaning(kind, {"a": a, "b": b, "things": thing})
            for kind, thing in itertools.product(SUMS, THINGS)
            for a, b in itertools.product(DIGITS, repeat=2)
            if kind != "sell" or a > b
        )
        # Every country with some sets of options, the right one equally often at each position.
        choices = []
        for country, continent in self._continents.items():
            generator = np.random.default_rng([self._seed, 6, *country.encode()])
            wrong = list(itertools.permutations((name for name in CONTINENTS if name != continent), len(LETTERS) - 1))
            for place in range(len(LETTERS)):
                for index in generator.permutation(len(wrong))[:OPTION_SETS]:
                    options = (*wrong[index][:place], continent, *wrong[index][place:])
                    words = {"country": country, **dict(zip(OPTION_PLACES, options, strict=True))}
                    choices.append(Meaning(CONTINENT, words))
        return {MATHEMATICS: tuple(stories), MULTIPLE_CHOICE: tuple(choices)}

    @functools.cached_property
    def _continents(self) -> dict[str, str]:
        """Country -> continent, for a few countries of each with one-word names in every natural language."""
        continents = shipped()["continents"]
        usable = (
            country
            for country in continents
            if all(len(lexicon(language, "country")[country].split()) == 1 for language in NATURAL)
        )
        members: dict[str, list[str]] = {continent: [] for continent in CONTINENTS}
        for country in seeded_order(usable, self._seed):
            members.get(continents[country], []).append(country)
        return {country: continent for continent, some in members.items() for country in sorted(some[:COUNTRIES])}


class ComprehensionTranslator:
    """Exact translator of the comprehension questions between all their languages; `(texts, source, target) -> texts`.

    It looks up constructed languages word by word, using the vocabulary of `tasks`, and parses natural ones sentence by
    sentence. The result for any other text is a `TranslationFailure`.
    """

    def __init__(self, tasks: ComprehensionTasks):
        self._look_up = LookUpTranslator(tasks.vocabulary)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates the texts from a language, or with `source` None from that detected for each text."""
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


@gin.configurable
@typed
def comprehension_questions(
    split: str,
    languages: Sequence[str] = LANGUAGES,
    domains: Sequence[str] = DOMAINS,
    limit: Count | None = None,
) -> list[Question]:
    """Sums in stories and choices about countries; arguments as of `ComprehensionTasks.questions`."""
    return ComprehensionTasks(atlas_world()).questions(split, languages, domains, limit)


@gin.configurable
@typed
def comprehension_translator() -> ComprehensionTranslator:
    """Returns the exact translator of the comprehension questions."""
    return ComprehensionTranslator(ComprehensionTasks(atlas_world()))
