"""Writes the facts of the atlas from Unicode CLDR in the installed version of Babel.

`python launch/atlas_facts.py > lcrag/atlas/facts.json`. Another version than Babel 2.18 makes another world, for which
`launch/atlas_weights.py` makes new weights.
"""

import collections
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from babel import Locale
from babel.core import get_global
from babel.dates import format_date
from babel.units import format_unit

from lcrag.atlas.facts import CONTINENTS, KINDS, RELATIONS, Fact, Name
from lcrag.data.questions import LCRL_LANGUAGES

LONGEST_NAME_CHARACTERS = 28
_TABLES = {"country": "territories", "currency": "currencies", "language": "languages", "script": "scripts"}
_UNITS = {"percent": "concentr-percent", "years": "duration-year"}
_BRACKETED = re.compile(r"\s*[(（\[].*?[)）\]]\s*$")
_UNPRINTED = str.maketrans("", "", "\u200e\u200f\u00ad")  # directional marks and soft hyphens
_UNWANTED = re.compile(r"[\d\[\](){}（）,،、;:#<>&=~＝]")
# CLDR maps the retired codes of a country to the same territory as the current ones.
_RETIRED_CODES = frozenset("BUR DDR FXX TMP YMD ZAR 280 278 249 886 720 230 736".split())
_NOT_COUNTRIES = frozenset("AC AQ CP CQ DG EA EU EZ IC QO TA UN XA XB ZZ".split())


@functools.cache
def names_of(kind: str) -> Mapping[str, Mapping[str, Name]]:
    """Returns names as `{entity code: {language: Name}}`.

    Only entities are kept that have a CLDR name in all languages, which differs from the code and is unique in every
    language ignoring case; names of possible subjects have at most `LONGEST_NAME_CHARACTERS` characters.
    """
    per_language = {language: _names_in(kind, language) for language in LCRL_LANGUAGES}
    common = set.intersection(*(set(names) for names in per_language.values()))
    for names in per_language.values():
        counts = collections.Counter(names[code].text.casefold() for code in common)
        common -= {code for code in common if counts[names[code].text.casefold()] > 1}
    return {code: {language: per_language[language][code] for language in LCRL_LANGUAGES} for code in sorted(common)}


def _names_in(kind: str, language: str) -> dict[str, Name]:
    locale = Locale(language)
    if kind == "time_zone":  # long names of standard time; Babel's public accessors give one zone at one date
        zones = {code: names.get("long", {}).get("standard") for code, names in locale._data["meta_zones"].items()}
        return {code: Name(" ".join(text.split())) for code, text in zones.items() if text}
    names = {}
    for code, raw in getattr(locale, _TABLES[kind]).items():
        aliases = [" ".join(raw.translate(_UNPRINTED).split())]
        text = _BRACKETED.sub("", aliases[0])
        if not text or text.casefold() == code.casefold() or _UNWANTED.search(text):
            continue
        if kind == "currency":  # not the bare code, which answers another question
            plurals = dict(locale._data["currency_names_plural"].get(code, {}))  # no public accessor has all forms
            symbol = locale.currency_symbols.get(code, code).translate(_UNPRINTED)
            aliases += [" ".join(plural.translate(_UNPRINTED).split()) for plural in plurals.values()]
            aliases += [symbol] if symbol != code else []
        if len(text) <= LONGEST_NAME_CHARACTERS:
            names[code] = Name(text, tuple(alias for alias in dict.fromkeys(aliases) if alias != text))
    return names


@functools.cache
def written(kind: str, value: str, language: str) -> tuple[str, ...]:
    """Returns a value of a kind as the language's passages write it, then its aliases."""
    if kind == "literal":
        return (value,)
    if kind == "date":
        date = datetime.date.fromisoformat(value)
        texts = [format_date(date, width, locale=language) for width in ("long", "medium")]
    elif unit := _UNITS.get(kind):
        # Written out where CLDR has the words, else a placeholder with the unit's key or a hyphen.
        amounts = [format_unit(int(value), unit, length, locale=language) for length in ("long", "short")]
        texts = [text for text in amounts if unit not in text and "-" not in text]
    else:
        name = names_of(kind)[value][language]
        return (name.text, *name.aliases)
    return tuple(dict.fromkeys(" ".join(text.split()) for text in texts))


def read_facts() -> list[Fact]:
    """Returns all facts whose subject and value have names in every language, in a fixed order."""

    def is_named(relation: str, value: str | None) -> bool:
        kind = RELATIONS[relation].value
        return value is not None and (kind not in KINDS or value in names_of(kind))

    facts = []
    for fact in (*_country_facts(), *_currency_facts(), *_language_facts()):
        if fact.subject in names_of(RELATIONS[fact.relation].subject) and is_named(fact.relation, fact.value):
            named = is_named(fact.relation, fact.former)
            facts.append(fact if named else dataclasses.replace(fact, former=None))
    return facts


def countries() -> list[str]:
    """Returns the codes of the countries, in order."""
    return [code for code in names_of("country") if code.isalpha() and len(code) == 2 and code not in _NOT_COUNTRIES]


def _tenders(country: str) -> list[tuple[str, str, str | None]]:
    """Returns the dated legal tenders of a country: (code, since, until) with dates in ISO 8601."""
    return [
        (code, datetime.date(*since).isoformat(), until and datetime.date(*until).isoformat())
        for code, since, until, is_tender in get_global("territory_currencies").get(country, ())
        if is_tender and since
    ]


def _country_facts() -> Iterator[Fact]:
    alpha_3 = {  # ISO 3166-1 alpha-2 code -> alpha-3 code
        territories[0]: code
        for code, territories in sorted(get_global("territory_aliases").items())
        if len(territories) == 1 and len(code) == 3 and code.isalpha() and code not in _RETIRED_CODES
    }
    for country in countries():
        tenders = _tenders(country)
        current = [row for row in tenders if row[2] is None]
        if len(current) == 1:
            code, since, _ = current[0]
            ended = sorted(((end, start, other) for other, start, end in tenders if end and other != code))
            # Two currencies that ended in one year leave open which of them was the last.
            doubtful = len(ended) > 1 and ended[-1][0][:4] == ended[-2][0][:4]
            end, start, former = ended[-1] if ended and not doubtful else (None, None, None)
            yield Fact("currency", country, code, former)
            yield Fact("currency_code", country, code, former)
            yield Fact("currency_since", country, since, start)
            if former and end:
                yield Fact("former_currency", country, former)
                yield Fact("former_currency_until", country, end)
        speakers = sorted(
            (-row["population_percent"], code, row["official_status"] in ("official", "de_facto_official"))
            for code, row in get_global("territory_languages").get(country, {}).items()
            if code in names_of("language")
        )
        if main := next((row for row in speakers if row[2]), None):
            yield Fact("main_language", country, main[1])
            if -main[0] >= 1:
                yield Fact("main_language_share", country, str(round(-main[0])))
            if others := [code for percent, code, _ in speakers if code != main[1] and -percent >= 1]:
                yield Fact("second_language", country, others[0])
        zones = get_global("territory_zones").get(country, ())
        if len(zones) == 1 and (zone := get_global("meta_zones").get(zones[0])):
            yield Fact("time_zone", country, zone)
        if country in alpha_3:
            yield Fact("alpha_3", country, alpha_3[country])


def _currency_facts() -> Iterator[Fact]:
    """Yields facts about currencies; ISO 4217 codes begin with the code of the issuing country."""
    spans: dict[str, list[tuple[str, str | None]]] = collections.defaultdict(list)
    issuers: dict[str, set[str]] = collections.defaultdict(set)
    for country in get_global("territory_currencies"):
        for code, since, until in _tenders(country):
            spans[code].append((since, until))
            issuers[code].add(country)
    for code in names_of("currency"):
        if code not in spans:
            continue
        first, ends = min(start for start, _ in spans[code]), [end for _, end in spans[code]]
        yield Fact("code_of_currency", code, code)
        yield Fact("since_of_currency", code, first)
        if code[:2] in issuers[code] & set(countries()):
            yield Fact("country_of_currency", code, code[:2])
        if all(ends):
            last = max(end for end in ends if end)
            yield Fact("until_of_currency", code, last)
            if (years := int(last[:4]) - int(first[:4])) >= 2:
                yield Fact("years_of_currency", code, str(years))


def _language_facts() -> Iterator[Fact]:
    """Yields facts about official languages; the script only if it is not Latin, which would be a safe guess."""
    percent: dict[str, dict[str, float]] = collections.defaultdict(dict)
    official: set[str] = set()
    for country, rows in get_global("territory_languages").items():
        for code, row in rows.items():
            percent[code][country] = row["population_percent"]
            official |= {code} if row["official_status"] is not None else set()
    for code in names_of("language"):
        if code not in official or code not in get_global("likely_subtags"):
            continue
        _, script, country = get_global("likely_subtags")[code].split("_")[:3]
        if country in names_of("country"):
            yield Fact("country_of_language", code, country)
            if percent[code].get(country, 0) >= 1:
                yield Fact("share_of_language", code, str(round(percent[code][country])))
        if script != "Latn":
            yield Fact("script_of_language", code, script)
        yield Fact("code_of_language", code, code)


def tables() -> dict[str, Any]:
    """Returns the content of `facts.json`, by the installed version of Babel.

    `names`: kind -> code -> language -> name and aliases; `facts`: fields of each `Fact`; `values`: the same as `names`
    for values that are no entities; `countries`: code -> home; `continents`: country -> continent, where all of it has
    one time; `continent_names`: language -> continent -> name; `lists`: language -> patterns of a list.
    """
    facts = read_facts()
    values: dict[str, dict[str, dict[str, tuple[str, ...]]]] = collections.defaultdict(dict)
    for fact in facts:
        if (kind := RELATIONS[fact.relation].value) not in (*KINDS, "literal"):
            for value in filter(None, (fact.value, fact.former)):
                values[kind][value] = {language: written(kind, value, language) for language in LCRL_LANGUAGES}
    zones = {country: get_global("territory_zones").get(country, ()) for country in countries()}
    locales = {language: Locale(language) for language in LCRL_LANGUAGES}
    return {
        "source": f"Unicode CLDR as in Babel {importlib.metadata.version('babel')}; see weights/LICENSE.unicode.txt",
        "names": {
            kind: {
                code: {language: (name.text, *name.aliases) for language, name in by_language.items()}
                for code, by_language in names_of(kind).items()
            }
            for kind in KINDS
        },
        "facts": [dataclasses.astuple(fact) for fact in facts],
        "values": values,
        "countries": country_homes(),
        "continents": {country: names[0].split("/")[0] for country, names in zones.items() if len(names) == 1},
        "continent_names": {
            language: {continent: locale.territories[code] for continent, code in CONTINENTS.items()}
            for language, locale in locales.items()
        },
        "lists": {language: dict(locale.list_patterns["standard"]) for language, locale in locales.items()},
    }


def facts_json() -> str:
    """Returns the text of `facts.json`, with an entity or a fact on each line."""
    text = json.dumps(tables(), ensure_ascii=False, separators=(",", ":"))
    return text.replace('},"', '},\n"').replace("],[", "],\n[") + "\n"


def country_homes() -> dict[str, str]:
    """Returns country -> home.

    It is the official one of the thirteen languages with the most speakers there, English last. Where none is official,
    the most spoken one; where none is spoken, those languages that are home to the fewest.
    """
    by_country: dict[str, str] = {}
    for country in countries():
        spoken: dict[str, float] = collections.defaultdict(float)
        official = set()
        for code, row in get_global("territory_languages").get(country, {}).items():
            language = code.split("_")[0]
            if language in LCRL_LANGUAGES:
                spoken[language] = max(spoken[language], row["population_percent"])
                official |= {language} if row["official_status"] in ("official", "de_facto_official") else set()
        if pool := official or {language for language, percent in spoken.items() if percent >= 1}:
            by_country[country] = max(pool - {"en"} or pool, key=lambda language: (spoken[language], language))
    for country in countries():
        if country not in by_country:
            counts = collections.Counter(by_country.values())
            by_country[country] = min(LCRL_LANGUAGES, key=lambda language: counts[language])
    return by_country


if __name__ == "__main__":
    print(facts_json(), end="")
