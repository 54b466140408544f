"""Stage 1, the source filter: what is worth translating (Translate-R1, Section 3.2 and Appendix L)."""

import collections
import re
import unicodedata

from lcrag.data.questions import Question
from lcrag.methods.translate_r1.pipeline.domains import MULTIPLE_CHOICE, Domain
from lcrag.methods.translate_r1.pipeline.options import split_options
from lcrag.methods.translate_r1.pipeline.thresholds import Thresholds

TOO_LONG, NO_LANGUAGE, NO_OPTIONS = "too long", "too little natural language", "no options A to D"
WRONG_OPTION = "the answer is no option"

# Formulas and code. A dollar sign opens one only in front of a character and closes one only behind a character and not
# in front of a digit, so that "$5 and $10" are prices.
_NOTATION = re.compile(
    r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\[.*?\\\]|\\\(.*?\\\)"
    r"|\\begin\{(\w+\*?)\}.*?\\end\{\1\}|\\[A-Za-z]+",
    re.DOTALL,
)
_PUNCTUATION = frozenset(".,;:!?'\"()-")


def unfit_source(question: Question, domain: Domain, thresholds: Thresholds) -> str:
    """Why a question is not translated; empty if it is.

    The share of natural language is measured on the question without its options, which may well be numbers.
    """
    if len(question.text) >= thresholds.characters:
        return TOO_LONG
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
    """Share of letters and the punctuation of prose in all that is prose or notation; 0 where there is neither.

    Everything in a formula or in code is notation, and outside of them every sign that prose does not use. Numbers,
    signs of currencies, `%` and `°` outside of them, which word problems are full of, are neither.
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
