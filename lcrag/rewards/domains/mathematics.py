r"""Mathematics: the number in the last `\boxed{}` is the label (Translate-R1, section 4.5).

How a number is read, of answers and of labels alike:

- Digits of any script count, and so do full-width forms; a minus may be `-` or U+2212.
- `3/4`, `\frac{3}{4}` (`\dfrac`, `\tfrac`) and the mixed `1 3/4` and `1\frac{3}{4}` are fractions.
- Groups of three digits behind commas, spaces, apostrophes or `{,}` are thousands: `1,234` is 1234. A comma that is no
  such separator is a decimal comma: `3,5` is 7/2. A dot is a decimal point, unless a decimal comma or another dot
  follows it: `1.234,5` and `1.234.567` have thousands.
- Currency signs, a percent or degree sign, units in `\text{}`, `\mathrm{}` or as a word behind the number, and LaTeX's
  spacing are left out; what stands before the last `=` is, too.

Numbers are compared exactly, as fractions: 0.5 is 1/2, and 0.33 is not 1/3. A label that is no number is compared as
text without white space.
"""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from lcrag.rewards.domains.boxed import boxed

_DROPPED = re.compile(
    r"\\left|\\right|\\[!,;: ]|\\(?:quad|qquad)\b|\\%|%|\\\$|[$€£¥₹°]|\^\{?\\circ\}?"
    r"|\\(?:text|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
_UNIT = re.compile(r"(?<=\d)\s*[^\W\d_]\D*$")
_THOUSANDS = re.compile(r"\d{1,3}([,'’٬ ])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_DOTTED = re.compile(r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}")
_DECIMAL = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_MIXED = re.compile(r"(\d+) *[+ ] *(\d+)/(\d+)")
_QUOTIENT = re.compile(r"([^/]+)/([^/]+)")
_SIGNS = str.maketrans({"\u2212": "-", "\u066b": "."})  # the minus sign and the Arabic decimal separator


def mathematics(answers: Sequence[str | None], golds: Sequence[Sequence[str]]) -> Float[np.ndarray, " answers"]:
    r"""1 where what the last `\boxed{}` holds is a golden answer, else 0; 0 without a box."""
    return np.array([_right(answer, own) for answer, own in zip(answers, golds, strict=True)], float)


def number(text: str) -> Fraction | None:
    """The number that a text is, by the rules above; None if it is none."""
    sign, value = _sign_and_rest(_plain(text))
    if mixed := _MIXED.fullmatch(value):
        whole, above, below = map(int, mixed.groups())
        return sign * (whole + Fraction(above, below)) if below else None
    if quotient := _QUOTIENT.fullmatch(value):
        numerator, denominator = (_decimal(part.strip()) for part in quotient.groups())
        return sign * numerator / denominator if numerator is not None and denominator else None
    decimal = _decimal(value)
    return None if decimal is None else sign * decimal


def _right(answer: str | None, golds: Sequence[str]) -> bool:
    content = boxed(answer or "")
    return content is not None and any(_same(content, gold) for gold in golds)


def _same(content: str, gold: str) -> bool:
    wanted = number(gold)
    if wanted is None:
        return "".join(content.split()) == "".join(gold.split()) != ""
    return number(content) == wanted


def _plain(text: str) -> str:
    """Without what does not belong to the number, its digits and signs in ASCII, fractions with a slash."""
    text = "".join(map(_plain_character, text)).rpartition("=")[2].replace("{,}", ",")
    text = _DROPPED.sub(" ", _FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]}", text))
    return _UNIT.sub("", " ".join(re.sub("[()]", "", text).split())).strip().rstrip(".")


def _plain_character(character: str) -> str:
    """Compatible forms of a character are one; `½` is ` 1/2`, and a raised digit makes a power, which is no number."""
    form = unicodedata.decomposition(character).partition(" ")[0]
    if form == "<fraction>":
        return f" {unicodedata.normalize('NFKC', character)}".replace("\u2044", "/")
    plain = unicodedata.normalize("NFKC", character)
    digits = "".join(str(unicodedata.digit(each)) if each.isdigit() else each for each in plain)
    return f"^{digits}" if form == "<super>" else digits.translate(_SIGNS)


def _sign_and_rest(text: str) -> tuple[int, str]:
    return (-1 if text.startswith("-") else 1), (text[1:].strip() if text.startswith(("-", "+")) else text)


def _decimal(text: str) -> Fraction | None:
    if separated := _THOUSANDS.fullmatch(text):
        text = text.replace(separated[1], "")
    elif _DOTTED.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    return Fraction(text) if _DECIMAL.fullmatch(text) else None
