"""Facts of the atlas from Unicode CLDR: names, relations, values, and texts about them in every language."""

import collections
import dataclasses
import datetime
import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from babel import Locale
from babel.core import get_global
from babel.dates import format_date
from babel.lists import format_list
from babel.units import format_unit

from lcrag.data.questions import LCRL_LANGUAGES

KINDS = ("country", "currency", "language", "script", "time_zone")
LONGEST_NAME_CHARACTERS = 28
_TABLES = {"country": "territories", "currency": "currencies", "language": "languages", "script": "scripts"}
_UNITS = {"percent": "concentr-percent", "years": "duration-year"}
_BRACKETED = re.compile(r"\s*[(（\[].*?[)）\]]\s*$")
_UNPRINTED = str.maketrans("", "", "\u200e\u200f\u00ad")  # directional marks and soft hyphens
_UNWANTED = re.compile(r"[\d\[\](){}（）,،、;:#<>&=~＝]")
# CLDR maps the retired codes of a country to the same territory as the current ones.
_RETIRED_CODES = frozenset("BUR DDR FXX TMP YMD ZAR 280 278 249 886 720 230 736".split())
_NOT_COUNTRIES = frozenset("AC AQ CP CQ DG EA EU EZ IC QO TA UN XA XB ZZ".split())


@dataclasses.dataclass(frozen=True)
class Name:
    """The name of an entity in one language."""

    text: str  # without brackets, digits or commas; unique among names of its kind in the language
    aliases: tuple[str, ...] = ()  # CLDR's other forms: with the bracketed addition, the plural, the symbol


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


@dataclasses.dataclass(frozen=True)
class Relation:
    """The relation between a fact's subject and value."""

    key: str
    subject: str  # kind of the subject: country, currency or language
    value: str  # kind of the value: that of an entity, or "date", "percent", "years" or "literal"
    section: str  # part of the subject's article in which the fact stands

    @property
    def copyable(self) -> bool:
        """Whether the value is the same string in every language."""
        return self.value == "literal"


RELATIONS: dict[str, Relation] = {
    relation.key: relation
    for relation in (
        Relation("currency", "country", "currency", "money"),
        Relation("currency_code", "country", "literal", "money"),
        Relation("currency_since", "country", "date", "money"),
        Relation("former_currency", "country", "currency", "former_money"),
        Relation("former_currency_until", "country", "date", "former_money"),
        Relation("main_language", "country", "language", "people"),
        Relation("second_language", "country", "language", "people"),
        Relation("main_language_share", "country", "percent", "people"),
        Relation("time_zone", "country", "time_zone", "place"),
        Relation("alpha_3", "country", "literal", "place"),
        Relation("code_of_currency", "currency", "literal", "issue"),
        Relation("since_of_currency", "currency", "date", "issue"),
        Relation("country_of_currency", "currency", "country", "issue"),
        Relation("until_of_currency", "currency", "date", "end"),
        Relation("years_of_currency", "currency", "years", "end"),
        Relation("country_of_language", "language", "country", "home"),
        Relation("share_of_language", "language", "percent", "home"),
        Relation("script_of_language", "language", "script", "writing"),
        Relation("code_of_language", "language", "literal", "writing"),
    )
}

# Chains of relations: the value of each is the subject of the next. No fact about the first subject answers a chain, or
# sounds as if it did ("when was the currency of X introduced" asks for the introduction in X).
COMPOSITIONS: tuple[tuple[str, ...], ...] = (
    ("main_language", "script_of_language"),
    ("second_language", "country_of_language"),
    ("country_of_language", "currency"),
    ("country_of_language", "time_zone"),
    ("country_of_currency", "main_language"),
    ("country_of_currency", "alpha_3"),
    ("main_language", "country_of_language"),
    ("former_currency", "since_of_currency"),
    ("former_currency", "years_of_currency"),
    ("country_of_currency", "main_language", "script_of_language"),
    ("country_of_language", "currency", "code_of_currency"),
    ("country_of_language", "former_currency", "since_of_currency"),
    ("second_language", "country_of_language", "currency_since"),
    ("second_language", "country_of_language", "currency", "code_of_currency"),
    ("country_of_language", "second_language", "country_of_language", "currency"),
    ("country_of_currency", "second_language", "country_of_language", "alpha_3"),
    ("country_of_currency", "main_language", "country_of_language", "alpha_3"),
)


@dataclasses.dataclass(frozen=True)
class Fact:
    """`relation` of `subject` is `value`."""

    relation: str  # key of the relation
    subject: str  # code of the entity
    value: str  # code of the value's entity, an ISO 8601 date, a number, or the literal itself
    former: str | None = None  # the value that preceded it, in the same form; None if CLDR has none

    @property
    def id(self) -> str:
        return f"{self.relation}/{self.subject}"


def subject_of(fact: Fact) -> tuple[str, str]:
    """Returns the entity (kind, code) that a fact is about."""
    return RELATIONS[fact.relation].subject, fact.subject


def section_of(fact: Fact) -> str:
    """Returns the id, without its language, of the passage that may state a fact."""
    relation = RELATIONS[fact.relation]
    return f"{relation.subject}/{fact.subject}/{relation.section}"


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


# --- Texts ---


@functools.cache
def wording() -> Mapping[str, Any]:
    """Returns the texts of `wording.json`: for each language labels, questions, search queries and passages.

    `of` puts the name of an entity into the form that a question contains ("of the country Finland"), `facts` has
    (label of passage and search query, question) for each relation, and `bridges` puts the value of a relation into the
    form of `of`, which makes questions over chains of facts. Names stand between spaces, in apposition in languages
    that would otherwise inflect them or add an article: a name is the same string, and the same tokens, everywhere.
    """
    return json.loads(pathlib.Path(__file__).with_name("wording.json").read_text(encoding="utf-8"))


UNKNOWN: Mapping[str, str] = wording()["unknown"]
# Value of a fact in a note when no passage states it.
UNREAD = "?"


def question_text(language: str, chain: Sequence[str], kind: str, name: str) -> str:
    """Returns the question for the value at the end of a chain of relations that begins at an entity of a kind."""
    texts = wording()["relations"][language]
    of = texts["of"][kind].format(name=name)
    for relation in chain[:-1]:
        of = texts["bridges"][relation].format(of=of)
    return " ".join(texts["facts"][chain[-1]][1].format(of=of).split())


def conjunction_text(language: str, relation: str, kind: str, names: Sequence[str]) -> str:
    """Returns the question for a relation of each of several entities of a kind."""
    texts = wording()["relations"][language]
    before, after = texts["of"][kind].split("{name}")
    of = listed([before + name for name in names], language) + after
    return " ".join(texts["facts"][relation][1].format(of=of).split())


def listed(items: Sequence[str], language: str) -> str:
    """Returns the items as the language writes lists (CLDR); a space keeps an item apart from a letter after it."""
    text = format_list([f"{item}\0" for item in items], locale=language)
    return re.sub(r"\0(?=\w)", " ", text).replace("\0", "")


def label(language: str, relation: str) -> str:
    """Returns the label of a relation in passages and queries, unique among relations of one kind of subject."""
    return wording()["relations"][language]["facts"][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    """Returns the short search query for the passage of a fact."""
    return f"{name} {label(language, relation)}"


def sentence_text(language: str, relation: str, value: str, year: int | None = None) -> str:
    """Returns the sentence of a fact in a passage, like an entry of an info box.

    The year of which it speaks, if any, tells old entries from present ones.
    """
    return f"{label(language, relation)}{'' if year is None else f' ({year})'}: {value}"
