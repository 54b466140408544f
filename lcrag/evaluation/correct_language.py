"""The correct-language rate: the share of answers in the language of their question.

Published numbers differ by their rule more than by their models, so this is the complete rule.

1. Not scored: no answer; an answer without letters (years, numbers); a code of at most five ASCII capitals, digits and
   signs (EUR, ISO 4217); a question in a language that CLDR does not know, such as the constructed ones.
2. Right: after normalisation it is one of the question's golds. Wrong: it is not, but it is a gold of another
   language's version of the same question. The data decide about names, not a classifier.
3. Wrong: it is in a script that the question's language is not written in (the script of most of its letters; any
   kana make an answer Japanese). Right: no other language of the run is written in its script.
4. Not scored: it has fewer than 12 letters, where identifiers are unreliable, or py3langid does not know the
   question's language.
5. Otherwise py3langid decides among the languages of the run written in that script.

The rate is right / (right + wrong); its `count` is the number of scored answers.
"""

import collections
import functools
import unicodedata
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import py3langid.langid
from babel.core import get_global
from jaxtyping import Float

from lcrag.evaluation.answered import Answered
from lcrag.rewards import normalise

SHORTEST_IDENTIFIED_LETTERS = 12
LONGEST_CODE = 5
UNKNOWN: tuple[str, ...] = ()

# The first word of a letter's Unicode name, for every ISO 15924 script a language may be written in.
_SCRIPT_NAMES = {
    "Arab": ("ARABIC",),
    "Beng": ("BENGALI",),
    "Cyrl": ("CYRILLIC",),
    "Deva": ("DEVANAGARI",),
    "Grek": ("GREEK",),
    "Hans": ("CJK",),
    "Hant": ("CJK",),
    "Hebr": ("HEBREW",),
    "Jpan": ("KANA", "CJK"),
    "Kore": ("HANGUL",),
    "Latn": ("LATIN",),
    "Taml": ("TAMIL",),
    "Telu": ("TELUGU",),
    "Thai": ("THAI",),
}


def correct_language(answered: Sequence[Answered], languages: Collection[str]) -> Float[np.ndarray, " questions"]:
    """Returns 1 for right, 0 for wrong, NaN for not scored, by the rule above.

    Args:
      answered: Answered questions.
      languages: All languages of the run; those of `answered` are added.
    """
    languages = sorted({*languages, *(question.language for question in answered)})
    versions: dict[str, set[str]] = collections.defaultdict(set)
    for question in answered:
        versions[question.cluster].update(map(normalise, question.golds))
    return np.array([_judge(question, versions[question.cluster], languages) for question in answered], float)


def _judge(question: Answered, golds_of_all_versions: set[str], languages: Iterable[str]) -> float:
    answer = question.answer or ""
    letters = [character for character in unicodedata.normalize("NFKC", answer) if character.isalpha()]
    if not letters or _is_code(answer.strip()) or _written_in(question.language) == UNKNOWN:
        return np.nan
    text = normalise(answer)
    if text in map(normalise, question.golds):
        return 1.0
    script = _script(letters)
    candidates = [language for language in languages if script in _written_in(language)]
    if text in golds_of_all_versions or question.language not in candidates:
        return 0.0
    if len(candidates) == 1:
        return 1.0
    identifier = _identifier(tuple(candidates))
    if len(letters) < SHORTEST_IDENTIFIED_LETTERS or question.language not in identifier.labels:
        return np.nan
    return float(identifier.classify(answer)[0] == question.language)


def _is_code(text: str) -> bool:
    return len(text) <= LONGEST_CODE and text.isascii() and text == text.upper()


def _script(letters: Iterable[str]) -> str:
    """The script of most letters by Unicode's names; "KANA" if any letter is kana."""
    names = collections.Counter(unicodedata.name(letter, "UNNAMED").split()[0] for letter in letters)
    return "KANA" if any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names) else names.most_common(1)[0][0]


@functools.cache
def _written_in(language: str) -> tuple[str, ...]:
    """The scripts of a language, by CLDR's likely subtags; `UNKNOWN` without any."""
    likely = get_global("likely_subtags").get(language, "")
    code = next((part for part in likely.split("_") if len(part) == 4), "")
    return _SCRIPT_NAMES.get(code, (code.upper(),)) if code else UNKNOWN


@functools.cache
def _identifier(languages: tuple[str, ...]) -> py3langid.langid.LanguageIdentifier:
    identifier = py3langid.langid.LanguageIdentifier.from_model_file(py3langid.langid.MODEL_FILE)
    identifier.set_languages([language for language in languages if language in identifier.labels])
    return identifier
