"""Facts of the atlas from Unicode CLDR: names in every language, relations, and the facts in each collection."""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from babel import Locale
from babel.core import get_global

from lcrag.data.languages import LCRL_LANGUAGES

KINDS = ("country", "currency", "language", "script")
LONGEST_NAME_CHARACTERS = 28
_TABLES = {"country": "territories", "currency": "currencies", "language": "languages", "script": "scripts"}
_BRACKETED = re.compile(r"\s*[(（\[].*?[)）\]]\s*$")
_UNPRINTED = str.maketrans("", "", "\u200e\u200f\u00ad")  # directional marks and soft hyphens
_UNWANTED = re.compile(r"[\d\[\](){}（）,،、;:#<>&=~＝]")


@dataclasses.dataclass(frozen=True)
class Name:
    """The name of an entity in one language.

    Attributes:
      text: The name, without brackets, digits or commas; unique among names of its kind in the language.
      aliases: CLDR's other forms: the name with its bracketed addition, the plural, the symbol.
    """

    text: str
    aliases: tuple[str, ...] = ()


@functools.cache
def names_of(kind: str) -> Mapping[str, Mapping[str, Name]]:
    """Returns names as `{entity code: {language: Name}}`.

    Only entities are kept that have a CLDR name in all languages, which differs from the code, has at most
    `LONGEST_NAME_CHARACTERS` characters, and is unique in every language ignoring case.
    """
    per_language = {language: _names_in(kind, language) for language in LCRL_LANGUAGES}
    common = set.intersection(*(set(names) for names in per_language.values()))
    for names in per_language.values():
        counts = collections.Counter(names[code].text.casefold() for code in common)
        common -= {code for code in common if counts[names[code].text.casefold()] > 1}
    return {code: {language: per_language[language][code] for language in LCRL_LANGUAGES} for code in sorted(common)}


def _names_in(kind: str, language: str) -> dict[str, Name]:
    locale = Locale(language)
    names = {}
    for code, raw in getattr(locale, _TABLES[kind]).items():
        full = " ".join(raw.translate(_UNPRINTED).split())
        text = _BRACKETED.sub("", full)
        if not text or text.casefold() == code.casefold() or _UNWANTED.search(text):
            continue
        aliases = [full, *(_currency_aliases(locale, code) if kind == "currency" else ())]
        if len(text) <= LONGEST_NAME_CHARACTERS:
            names[code] = Name(text, tuple(alias for alias in dict.fromkeys(aliases) if alias != text))
    return names


def _currency_aliases(locale: Locale, code: str) -> list[str]:
    """Returns plural forms and the symbol; the bare code is not an alias: it answers another question."""
    plurals = locale._data["currency_names_plural"].get(code, {})  # Babel has no public accessor for all the forms
    forms = [" ".join(plural.translate(_UNPRINTED).split()) for plural in dict(plurals).values()]
    symbol = locale.currency_symbols.get(code, code).translate(_UNPRINTED)
    return forms + ([symbol] if symbol != code else [])


@dataclasses.dataclass(frozen=True)
class Relation:
    """The relation between a fact's subject and value.

    Attributes:
      key: Name of the relation.
      subject: Kind of the subject: country, currency or language.
      value: Kind of the value, or "literal": a string that is the same in every language.
    """

    key: str
    subject: str
    value: str = "literal"

    @property
    def copyable(self) -> bool:
        return self.value == "literal"


RELATIONS: dict[str, Relation] = {
    relation.key: relation
    for relation in (
        Relation("alpha_3", "country"),
        Relation("number", "country"),
        Relation("currency_code", "country"),
        Relation("currency", "country", "currency"),
        Relation("currency_year", "country"),
        Relation("former_currency_code", "country"),
        Relation("main_language", "country", "language"),
        Relation("time_zone", "country"),
        Relation("code_of_currency", "currency"),
        Relation("year_of_currency", "currency"),
        Relation("country_of_currency", "currency", "country"),
        Relation("code_of_language", "language"),
        Relation("country_of_language", "language", "country"),
        Relation("country_code_of_language", "language"),
        Relation("script_of_language", "language", "script"),
    )
}

# Two-hop questions: the first relation's value is the second's subject. No one-hop fact about the first subject
# answers a composition.
COMPOSITIONS: tuple[tuple[str, str], ...] = (
    ("main_language", "code_of_language"),
    ("main_language", "script_of_language"),
    ("country_of_language", "currency_code"),
    ("country_of_language", "alpha_3"),
    ("country_of_currency", "number"),
)


@dataclasses.dataclass(frozen=True)
class Fact:
    """`relation` of `subject` is `value`.

    Attributes:
      relation: Key of the relation.
      subject: Code of the entity.
      value: Code of the value's entity, or the literal itself.
      outdated: The former value, in the form of `value`; None if CLDR has none.
    """

    relation: str
    subject: str
    value: str
    outdated: str | None = None

    @property
    def id(self) -> str:
        return f"{self.relation}/{self.subject}"


# CLDR maps the retired codes of a country to the same territory as the current ones.
_RETIRED_CODES = frozenset("BUR DDR FXX TMP YMD ZAR 280 278 249 886 720 230 736".split())
_NOT_COUNTRIES = frozenset("AC AQ CP CQ DG EA EU EZ IC QO TA UN XA XB ZZ".split())


@dataclasses.dataclass(frozen=True)
class _Tender:
    code: str
    year: int


def read_facts() -> list[Fact]:
    """Returns all one-hop facts whose subject and value have names in every language, in a fixed order."""
    facts = [fact for reader in (_country_facts, _currency_facts, _language_facts) for fact in reader()]
    kept = []
    for fact in facts:
        relation = RELATIONS[fact.relation]
        subject_named = fact.subject in names_of(relation.subject)
        value_named = relation.copyable or fact.value in names_of(relation.value)
        if subject_named and value_named:
            kept.append(_with_named_outdated(fact, relation))
    return kept


def _with_named_outdated(fact: Fact, relation: Relation) -> Fact:
    usable = relation.copyable or fact.outdated in names_of(relation.value)
    return fact if usable else dataclasses.replace(fact, outdated=None)


def _countries() -> list[str]:
    return [code for code in names_of("country") if code.isalpha() and len(code) == 2 and code not in _NOT_COUNTRIES]


def _country_facts() -> Iterator[Fact]:
    alpha_3, number = _iso_codes()
    for country in _countries():
        if country in alpha_3:
            yield Fact("alpha_3", country, alpha_3[country])
        if country in number:
            yield Fact("number", country, number[country])
        yield from _tender_facts(country)
        if language := _main_language(country):
            yield Fact("main_language", country, language)
        zones = get_global("territory_zones").get(country, ())
        if len(zones) == 1:
            yield Fact("time_zone", country, zones[0])


def _iso_codes() -> tuple[dict[str, str], dict[str, str]]:
    """Returns ISO 3166-1 alpha-3 and numeric codes by alpha-2 code."""
    alpha_3: dict[str, str] = {}
    number: dict[str, str] = {}
    for code, territories in sorted(get_global("territory_aliases").items()):
        if len(territories) != 1 or len(code) != 3 or code in _RETIRED_CODES:
            continue
        (number if code.isdigit() else alpha_3)[territories[0]] = code
    return alpha_3, number


def _tender_facts(country: str) -> Iterator[Fact]:
    now, before = _tenders(country)
    if now is None:
        return
    old_code, old_year = (before.code, str(before.year)) if before else (None, None)
    yield Fact("currency_code", country, now.code, old_code)
    yield Fact("currency", country, now.code, old_code)
    yield Fact("currency_year", country, str(now.year), old_year if old_year != str(now.year) else None)
    if before:
        yield Fact("former_currency_code", country, before.code)


def _tenders(country: str) -> tuple[_Tender | None, _Tender | None]:
    """Returns a country's only current legal tender and the last one before it; None if CLDR's dates are ambiguous."""
    rows = [row for row in get_global("territory_currencies").get(country, ()) if row[3] and row[1]]
    current = [row for row in rows if row[2] is None]
    if len(current) != 1:
        return None, None
    code = current[0][0]
    ended = sorted((row for row in rows if row[2] is not None and row[0] != code), key=lambda row: row[2])
    doubtful = len(ended) > 1 and ended[-1][2][0] - ended[-2][2][0] < 1
    before = _Tender(ended[-1][0], ended[-1][1][0]) if ended and not doubtful else None
    return _Tender(code, current[0][1][0]), before


def _main_language(country: str) -> str | None:
    """Returns the official language with the most users in a country."""
    rows = get_global("territory_languages").get(country, {})
    official = {
        code: row["population_percent"]
        for code, row in rows.items()
        if row["official_status"] in ("official", "de_facto_official")
    }
    best = max(official, key=lambda code: (official[code], code), default=None)
    return best if best is not None and "_" not in best else None


def _currency_facts() -> Iterator[Fact]:
    """Yields facts about currencies; ISO 4217 codes begin with the code of the issuing country."""
    countries = set(_countries())
    starts: dict[str, list[int]] = {}
    issuers: dict[str, set[str]] = {}
    for country, rows in get_global("territory_currencies").items():
        for code, start, _, tender in rows:
            if tender and start:
                starts.setdefault(code, []).append(start[0])
                issuers.setdefault(code, set()).add(country)
    for code in names_of("currency"):
        if code not in starts:
            continue
        yield Fact("code_of_currency", code, code)
        yield Fact("year_of_currency", code, str(min(starts[code])))
        if code[:2] in issuers[code] & countries:
            yield Fact("country_of_currency", code, code[:2])


def _language_facts() -> Iterator[Fact]:
    """Yields facts about official languages; the script only if it is not Latin, which would be a safe guess."""
    official = {
        code
        for rows in get_global("territory_languages").values()
        for code, row in rows.items()
        if row["official_status"] is not None
    }
    for code in names_of("language"):
        if code not in official or code not in get_global("likely_subtags"):
            continue
        _, script, country = get_global("likely_subtags")[code].split("_")[:3]
        yield Fact("code_of_language", code, code)
        if country in names_of("country"):
            yield Fact("country_of_language", code, country)
            yield Fact("country_code_of_language", code, country)
        if script != "Latn":
            yield Fact("script_of_language", code, script)


CURRENCY_LIKE = ("currency", "currency_code", "currency_year")  # relations with former values in CLDR
OUTDATED_SHARE = 0.12  # of the currency-like passages


@dataclasses.dataclass(frozen=True)
class Holdings:
    """The state of each fact in each language's collection.

    Attributes:
      current: Language -> ids of the facts with current passages.
      outdated: Language -> ids of the facts with outdated passages.
    """

    current: Mapping[str, frozenset[str]]
    outdated: Mapping[str, frozenset[str]]


def draw_holdings(facts: Sequence[Fact], seed: int, coverage: Mapping[str, float], outdated_share: float) -> Holdings:
    """Draws for every fact and language whether the collection has a passage, and whether it is outdated.

    A fact that is missing everywhere (probability 10^-5) is added to English.
    """
    generator = np.random.default_rng([seed, 3])
    languages = tuple(coverage)
    nominal = np.array([coverage[language] for language in languages])
    held = generator.random((len(facts), len(languages))) < nominal
    held[~held.any(axis=1), 0] = True
    currency_like = sum(fact.relation in CURRENCY_LIKE for fact in facts)
    datable = np.array([fact.relation in CURRENCY_LIKE and fact.outdated is not None for fact in facts])
    rate = min(1.0, outdated_share * currency_like / max(1, int(datable.sum())))
    outdated = held & datable[:, None] & (generator.random(held.shape) < rate)

    def ids(mask: np.ndarray) -> dict[str, frozenset[str]]:
        return {
            language: frozenset(fact.id for fact, chosen in zip(facts, mask[:, column], strict=True) if chosen)
            for column, language in enumerate(languages)
        }

    return Holdings(current=ids(held & ~outdated), outdated=ids(outdated))
