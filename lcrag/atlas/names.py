"""Names of countries, currencies, languages and scripts in every atlas language, from CLDR."""

import collections
import dataclasses
import functools
import re
from collections.abc import Mapping

from babel import Locale

from lcrag.data.languages import LCRL_LANGUAGES

KINDS = ("country", "currency", "language", "script")
LONGEST_NAME_CHARACTERS = 28
_TABLES = {"country": "territories", "currency": "currencies", "language": "languages", "script": "scripts"}
_BRACKETED = re.compile(r"\s*[(（\[].*?[)）\]]\s*$")
_UNPRINTED = str.maketrans("", "", "\u200e\u200f\u00ad")  # directional marks and soft hyphens
_UNWANTED = re.compile(r"[\d\[\](){}（）,،、;:#<>&=~＝]")


@dataclasses.dataclass(frozen=True)
class Name:
    """What one entity is called in one language.

    Attributes:
      text: The name; it holds no brackets, digits or commas, and is unique among names of its kind in the language.
      aliases: Other forms that CLDR gives: the name with its bracketed addition, the plural, the symbol.
    """

    text: str
    aliases: tuple[str, ...] = ()


@functools.cache
def names_of(kind: str) -> Mapping[str, Mapping[str, Name]]:
    """Names as `{entity code: {language: Name}}`.

    Kept are the entities that CLDR names in all languages, by a name other than the code, at most
    `LONGEST_NAME_CHARACTERS` long, unique in every language when letter case is ignored.
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
    """Plural forms and the symbol; the bare code is no alias, because it answers another question."""
    plurals = locale._data["currency_names_plural"].get(code, {})  # Babel has no public accessor for all the forms
    forms = [" ".join(plural.translate(_UNPRINTED).split()) for plural in dict(plurals).values()]
    symbol = locale.currency_symbols.get(code, code).translate(_UNPRINTED)
    return forms + ([symbol] if symbol != code else [])
