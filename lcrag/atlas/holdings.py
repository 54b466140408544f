"""Which facts each language's collection holds, and where it holds a stale value.

Every entity has a home: the language, of the thirteen, that is spoken there. Its collection holds nearly all facts
about the entity, and holds them right. One draw for each fact decides whether *all* other collections share one stale
or wrong value, so agreement between languages does not show that a value is right; the year of an entry tells instead.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from babel.core import get_global

from lcrag.atlas.facts import Fact, countries, section_of, subject_of
from lcrag.data.languages import LCRL_LANGUAGES

HOME_SHARE, ENGLISH_SHARE, FOREIGN_SHARE = 0.95, 0.5, 0.38  # of the sections about an entity
STATED_SHARE = 0.93  # of the facts of a section
STALE_SHARE = 0.3
DATED_SHARE = 0.5  # of the entries that are not stale
STALE_YEARS, PRESENT_YEARS = (1985, 2005), (2018, 2026)


@dataclasses.dataclass(frozen=True)
class Entry:
    """The value that a collection gives for a fact, and the year of which it speaks; None: undated."""

    value: str
    year: int | None


Holdings = Mapping[str, Mapping[str, Entry]]  # language -> id of a fact -> what its collection says


def draw_holdings(
    facts: Sequence[Fact], homes: Mapping[tuple[str, str], str], seed: int, complete: Sequence[str] = ()
) -> Holdings:
    """Draws what every collection says of every fact; a fact that no collection would hold is added to its home.

    Args:
      facts: All facts.
      homes: Entity (kind, code) -> its home language.
      seed: Seed of the draws.
      complete: Languages whose collections hold every fact right. The others hold what they would hold without them.
    """
    generator = np.random.default_rng([seed, 3])
    values = collections.defaultdict(list)
    for fact in facts:
        values[fact.relation].append(fact.value)
    holdings: dict[str, dict[str, Entry]] = {language: {} for language in LCRL_LANGUAGES}
    sections: dict[str, np.ndarray] = {}  # which languages have a section
    for fact in facts:
        home, section = homes[subject_of(fact)], section_of(fact)
        if section not in sections:
            shares = [ENGLISH_SHARE if language == "en" else FOREIGN_SHARE for language in LCRL_LANGUAGES]
            shares[LCRL_LANGUAGES.index(home)] = HOME_SHARE
            sections[section] = generator.random(len(shares)) < shares
        held = sections[section] & (generator.random(len(LCRL_LANGUAGES)) < STATED_SHARE)
        stale = None
        if generator.random() < STALE_SHARE:  # the former value, or another fact's value of the same relation
            others = [value for value in dict.fromkeys(values[fact.relation]) if value != fact.value]
            if fact.former is not None and fact.former != fact.value:
                stale = fact.former
            elif others:
                stale = others[int(generator.integers(len(others)))]
        for language, holds in zip(LCRL_LANGUAGES, held, strict=True):
            value = fact.value if stale is None or language == home or language in complete else stale
            dated = generator.random() < DATED_SHARE
            year = int(generator.integers(*(PRESENT_YEARS if value == fact.value else STALE_YEARS)))
            # Every draw is made whether or not the entry is held, so `complete` changes no other collection.
            if holds or language in complete or (language == home and not held.any()):
                holdings[language][fact.id] = Entry(value, year if dated or value != fact.value else None)
    return holdings


def country_homes() -> dict[str, str]:
    """Returns country -> the official one of the thirteen languages with the most speakers there, English last.

    Where none is official, the most spoken one; where none is spoken, those languages that are home to the fewest.
    """
    homes: dict[str, str] = {}
    for country in countries():
        spoken: dict[str, float] = collections.defaultdict(float)
        official = set()
        for code, row in get_global("territory_languages").get(country, {}).items():
            language = code.split("_")[0]
            if language in LCRL_LANGUAGES:
                spoken[language] = max(spoken[language], row["population_percent"])
                official |= {language} if row["official_status"] in ("official", "de_facto_official") else set()
        pool = official or {language for language, percent in spoken.items() if percent >= 1}
        if pool:
            homes[country] = max(pool - {"en"} or pool, key=lambda language: (spoken[language], language))
    for country in countries():
        if country not in homes:
            counts = collections.Counter(homes.values())
            homes[country] = min(LCRL_LANGUAGES, key=lambda language: counts[language])
    return homes


def entity_homes(facts: Sequence[Fact]) -> dict[tuple[str, str], str]:
    """Returns entity -> home: a currency's is that of its issuer, a language's its own or that of its main country."""
    by_country = country_homes()
    issuers = {fact.subject: fact.value for fact in facts if fact.relation == "country_of_currency"}
    users = {fact.value: fact.subject for fact in reversed(facts) if fact.relation == "currency"}
    mains = {fact.subject: fact.value for fact in facts if fact.relation == "country_of_language"}
    homes = {("country", country): home for country, home in by_country.items()}
    for fact in facts:
        code = fact.subject
        if fact.relation.endswith("_of_currency"):
            homes["currency", code] = by_country.get(issuers.get(code) or users.get(code, ""), "en")
        elif fact.relation.endswith("_of_language"):
            homes["language", code] = code if code in LCRL_LANGUAGES else by_country.get(mains.get(code, ""), "en")
    return homes
