"""Facts of the atlas from Unicode CLDR: names, relations, values, and texts about them in every language.

Names, values and facts are those of `facts.json`, which `launch/atlas_facts.py` made once: other versions of CLDR would
make another world, which the policies and the encoder that ship with the package do not know.
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = ("country", "currency", "language", "script", "time_zone")
# Prefix of a continent's time zones -> CLDR's code of the continent.
CONTINENTS: Mapping[str, str] = {"Africa": "002", "America": "019", "Asia": "142", "Europe": "150", "Pacific": "009"}


@dataclasses.dataclass(frozen=True)
class Name:
    """The name of an entity in one language."""

    text: str  # without brackets, digits or commas; unique among names of its kind in the language
    aliases: tuple[str, ...] = ()  # CLDR's other forms: with the bracketed addition, the plural, the symbol


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


# --- What is shipped ---


@functools.cache
def shipped() -> Mapping[str, Any]:
    """Returns the content of `facts.json`; see `tables` in `launch/atlas_facts.py`."""
    return json.loads(pathlib.Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))


@functools.cache
def names_of(kind: str) -> Mapping[str, Mapping[str, Name]]:
    """Returns names as `{entity code: {language: Name}}`, in the order of the codes."""
    return {
        code: {language: Name(text, tuple(aliases)) for language, (text, *aliases) in by_language.items()}
        for code, by_language in shipped()["names"][kind].items()
    }


def read_facts() -> list[Fact]:
    """Returns all facts, whose subjects and values have names in every language, in a fixed order."""
    return [Fact(*row) for row in shipped()["facts"]]


def written(kind: str, value: str, language: str) -> tuple[str, ...]:
    """Returns the value of a fact, of a kind, as the language's passages write it, then its aliases."""
    if kind == "literal":
        return (value,)
    return tuple(shipped()["names" if kind in KINDS else "values"][kind][value][language])


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
    patterns, (text, *others) = shipped()["lists"][language], [f"{item}\0" for item in items]
    for place, item in enumerate(others):
        pattern = "2" if len(others) == 1 else "end" if item is others[-1] else "middle" if place else "start"
        text = patterns[pattern].format(text, item)
    return re.sub(r"\0(?=\w)", " ", text).replace("\0", "")


def label(language: str, relation: str) -> str:
    """Returns the label of a relation in passages and queries, unique among relations of one kind of subject."""
    return wording()["relations"][language]["facts"][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    return f"{name} {label(language, relation)}"


def sentence_text(language: str, relation: str, value: str, year: int | None = None) -> str:
    """Returns the sentence of a fact in a passage, like an entry of an info box.

    The year of which it speaks, if any, tells old entries from present ones.
    """
    return f"{label(language, relation)}{'' if year is None else f' ({year})'}: {value}"
