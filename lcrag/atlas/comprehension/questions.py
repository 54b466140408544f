"""The comprehension questions: sums in stories and choices of continents, easy for whoever understands them.

They are asked in languages that the atlas's tiny policy is taught richly, in others that it is taught a little of, and
in the constructed ones, of which it is taught nothing. A question is the same in all of them. A split is a set of
questions; the sums and the countries of a held-out one occur in others, with other things to count and other options.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from lcrag.atlas.comprehension.meaning import CONTINENTS, OPTION_PLACES, Meaning, lexicon, sentence_of
from lcrag.atlas.comprehension.sentences import DIGITS, NATURAL, THINGS
from lcrag.atlas.world import World
from lcrag.data.constructed import CONSTRUCTED, constructed_questions, vocabulary_of
from lcrag.data.domains import MATHEMATICS, MULTIPLE_CHOICE
from lcrag.data.languages import known_languages
from lcrag.data.questions import Question
from lcrag.data.seeded_order import seeded_order
from lcrag.data.tiers import with_tiers
from lcrag.errors import UserError

DATASET = "atlas_comprehension"
KNOWN, HALF_KNOWN = ("en", "fr", "it"), ("fi", "ru")
TIERS: Mapping[str, tuple[str, ...]] = {"known": KNOWN, "half_known": HALF_KNOWN, "constructed": tuple(CONSTRUCTED)}
LANGUAGES = (*NATURAL, *CONSTRUCTED)
# Shares of the questions; "demonstrations" are for supervised learning, "train" for reinforcement learning.
SPLITS: Mapping[str, float] = {"demonstrations": 0.55, "validation": 0.03, "train": 0.25, "held_out": 0.17}
DOMAINS = (MATHEMATICS, MULTIPLE_CHOICE)
SUMS: Mapping[str, Callable[[int, int], int]] = {"buy": int.__add__, "sell": int.__sub__, "bags": int.__mul__}
CONTINENT = "continent"
LETTERS = "ABCD"
COUNTRIES = 4  # of each continent
OPTION_SETS = 6  # of each country, with the right option at one place


class ComprehensionTasks:
    """The comprehension questions about one world.

    Args:
      world: The atlas, whose facts are asked and whose seed draws options and splits.
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
        """The questions of a split, all language versions of a question together.

        Args:
          split: demonstrations, validation, train or held_out.
          languages: Codes of the languages to ask in; None: all of them, the constructed ones included.
          domains: mathematics, multiple_choice or both.
          limit: At most this many questions of each domain, each in all languages.

        Returns:
          Questions with their domain and tier (known, half_known or constructed), whose `extra` has `kind`, `words`
          (what stands at the places of the sentence) and `value` (the sum, or the country's continent).

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
        """Every word of the English questions, which the constructed languages have words for."""
        return tuple(vocabulary_of(sentence_of(meaning, "en") for own in self._meanings.values() for meaning in own))

    def value(self, meaning: Meaning) -> str:
        """What is asked for, apart from its language: a number in digits, or the name of a continent.

        Raises:
          KeyError, ValueError: its words are none that this can be said of.
        """
        words = meaning.words
        if meaning.kind in SUMS:
            return str(SUMS[meaning.kind](int(words["a"]), int(words["b"])))
        return self._continents[words["country"]]

    def strange_words(self, language: str) -> frozenset[str]:
        """Codes of what whoever half knows a language does not know: one number of the four, and half the countries."""
        numbers, countries = (
            [key.partition("/")[2] for key in seeded_order((f"{language}/{code}" for code in codes), self._world.seed)]
            for codes in (DIGITS, self._continents)
        )
        return frozenset((numbers[0], *countries[: len(countries) // 2]))

    @functools.cached_property
    def _meanings(self) -> dict[str, tuple[Meaning, ...]]:
        return {MATHEMATICS: tuple(_stories()), MULTIPLE_CHOICE: tuple(self._choices())}

    @functools.cached_property
    def _continents(self) -> dict[str, str]:
        """A few countries of each continent with names of one word in every natural language, and their continents."""
        zones = {fact.subject: fact.value for fact in self._world.facts if fact.relation == "time_zone"}
        found: dict[str, list[str]] = {continent: [] for continent in CONTINENTS}
        for country in seeded_order(filter(_is_one_word, zones), self._world.seed):
            found.get(zones[country].split("/")[0], []).append(country)
        return {country: continent for continent, own in found.items() for country in sorted(own[:COUNTRIES])}

    def _choices(self) -> Iterator[Meaning]:
        """Every country with some sets of options, the right one equally often at each place."""
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
    """The letter of the option that is `value`.

    Raises:
      ValueError: there is none.
    """
    return LETTERS[[meaning.words[place] for place in OPTION_PLACES].index(value)]


def _stories() -> Iterator[Meaning]:
    """Every story with a sum of numbers from two to five; nobody sells as much as there is."""
    for kind, thing in itertools.product(SUMS, THINGS):
        for a, b in itertools.product(DIGITS, repeat=2):
            if kind != "sell" or a > b:
                yield Meaning(kind, {"a": a, "b": b, "things": thing})


def _id(meaning: Meaning) -> str:
    return "/".join((meaning.kind, *meaning.words.values()))


def _is_one_word(country: str) -> bool:
    return all(len(lexicon(language, "country")[country].split()) == 1 for language in NATURAL)
