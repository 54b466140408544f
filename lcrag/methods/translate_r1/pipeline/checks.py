"""Checks without models: the source filter, the translation heuristics, and the judge's verdict (Translate-R1, app. L).

All thresholds stand in `Thresholds`.
"""

import collections
import dataclasses
import re
import unicodedata
from typing import Literal, TypeAlias

import gin

from lcrag.data.questions import Question
from lcrag.errors import UserError, typed
from lcrag.methods.translate_r1.pipeline.texts import MULTIPLE_CHOICE, TRANSLATION, Domain, split_options
from lcrag.rewards.domains.written_texts import chrf, length_ratio, repetition_ratio

TOO_LONG_SOURCE, NO_LANGUAGE, NO_OPTIONS = "too long", "too little natural language", "no options A to D"
WRONG_OPTION = "the answer is no option"
REPEATS, TOO_SHORT, TOO_LONG, COPY = "repeats itself", "too short", "too long", "a copy of the source"

Verdict: TypeAlias = Literal["SAME", "DIFFERENT", "neither"]


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of the stages (Translate-R1, appendix L).

    Attributes:
      natural_language: Minimum share of natural language in a source.
      characters: A source must be shorter than this.
      repetition: Maximum repetition ratio of a translation's 10-grams of characters.
      min_length: Minimum ratio of a translation's length to its source's, in characters.
      max_length: Maximum such ratio.
      copy: Maximum chrF of a translation to its source.
      round_trip: Minimum chrF of a back-translation to the source.
      round_trip_texts: The same for the domain `translation`, whose short texts vary more.
    """

    natural_language: float = 0.8
    characters: int = 2000
    repetition: float = 0.3
    min_length: float = 0.2
    max_length: float = 3.0
    copy: float = 0.9
    round_trip: float = 0.4
    round_trip_texts: float = 0.35

    def __post_init__(self):
        for name in ("natural_language", "repetition", "copy", "round_trip", "round_trip_texts"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"Thresholds.{name} is {getattr(self, name):g}: set it to a share, 0 to 1")
        if not 0 <= self.min_length < self.max_length:
            raise UserError(
                f"Thresholds.min_length is {self.min_length:g} and max_length {self.max_length:g}: no length is"
                " between them"
            )

    def min_round_trip(self, domain: Domain) -> float:
        """Minimum chrF of a back-translation in a domain."""
        return self.round_trip_texts if domain is TRANSLATION else self.round_trip


# Formulas and code. A dollar sign opens a formula only before a character other than white space; it closes one only
# after such a character and not before a digit. "$5 and $10" are therefore prices.
_NOTATION = re.compile(
    r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\[.*?\\\]|\\\(.*?\\\)"
    r"|\\begin\{(\w+\*?)\}.*?\\end\{\1\}|\\[A-Za-z]+",
    re.DOTALL,
)
_PUNCTUATION = frozenset(".,;:!?'\"()-")


def unfit_source(question: Question, domain: Domain, thresholds: Thresholds) -> str:
    """Returns why the source filter (stage 1) removes a question, empty if it passes.

    The share of natural language is that of the question without its options, which may be numbers.
    """
    if len(question.text) >= thresholds.characters:
        return TOO_LONG_SOURCE
    stem = question.text
    if domain is MULTIPLE_CHOICE:
        options = split_options(question.text)
        if options is None or len(options.texts) < 4 or not all((options.stem, *options.texts.values())):
            return NO_OPTIONS
        if not set(question.answers) <= set(options.texts):
            return WRONG_OPTION
        stem = options.stem
    return "" if natural_language_share(stem) >= thresholds.natural_language else NO_LANGUAGE


def natural_language_share(text: str) -> float:
    """Returns the share of prose (letters and their punctuation) in all prose and notation; 0 if there is neither.

    Notation is everything in a formula or in code, and outside of them every sign that prose does not use. Numbers,
    currency signs, `%` and `°` outside of formulas, which word problems are full of, are neither.
    """
    outside = _NOTATION.sub(" ", text)
    kinds = collections.Counter(map(_kind, outside))
    inside = len("".join(text.split())) - len("".join(outside.split()))
    everything = kinds["prose"] + kinds["notation"] + inside
    return kinds["prose"] / everything if everything else 0.0


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or character in "%°" or category[0] == "N" or category == "Sc":
        return "neither"
    if category[0] in "LM" or (character in _PUNCTUATION if character.isascii() else category[0] == "P"):
        return "prose"
    return "notation"


def defect(translation: str, source: str, thresholds: Thresholds) -> str:
    """Returns the first defect that the heuristics (stage 3) find in a translation, empty if there is none."""
    if repetition_ratio(translation) > thresholds.repetition:
        return REPEATS
    if length_ratio(translation, source) < thresholds.min_length:
        return TOO_SHORT
    if length_ratio(translation, source) > thresholds.max_length:
        return TOO_LONG
    return COPY if chrf(translation, [source]) > thresholds.copy else ""


_TAGGED_VERDICT = re.compile(r"<verdict>(.*?)</verdict>", re.DOTALL | re.IGNORECASE)
_AROUND = " \t\r\n.!*_`'\""


def verdict_in(answer: str) -> Verdict:
    """Returns the verdict (stage 5) in a judge's answer: the content of its last tags, or all of it without tags.

    Case and surrounding punctuation do not matter.
    """
    tagged = _TAGGED_VERDICT.findall(answer)
    match (tagged[-1] if tagged else answer).strip(_AROUND).upper():
        case "SAME":
            return "SAME"
        case "DIFFERENT":
            return "DIFFERENT"
    return "neither"
