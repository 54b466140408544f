r"""Answers that are a number or the letter of an option (Translate-R1, section 4.5).

A number is read from the last `\boxed{}`, in answers and labels alike:

- Digits of any script and full-width forms count; a minus sign is `-` or U+2212.
- `3/4`, `\frac{3}{4}` (`\dfrac`, `\tfrac`) and the mixed `1 3/4` and `1\frac{3}{4}` are fractions.
- Commas, spaces, apostrophes and `{,}` before groups of three digits separate thousands: `1,234` is 1234. Any other
  comma is a decimal comma: `3,5` is 7/2. A dot is a decimal point, unless a decimal comma or another dot follows it:
  `1.234,5` and `1.234.567` have thousands.
- Currency signs, percent and degree signs, units in `\text{}`, `\mathrm{}` or as words after the number, and LaTeX's
  spacing are ignored, and so is everything before the last `=`. A single Latin or Greek letter that is no usual
  unit (`5 m`, `20 C`) is a variable: `3x` is not a number.

Numbers are compared exactly, as fractions: 0.5 is 1/2, and 0.33 is not 1/3. A label that is not a number is compared as
text without white space.

The letter of an option is read from the last `\boxed{}`, or from the whole answer without one. Ignoring markup and
surrounding punctuation, either the text is the letter alone (`B`, `(b)`, `**B**`), or it begins with the letter and
`.`, `:` or `)` (`B. Paris`) and no other option follows in that form; otherwise exactly one letter must be in
parentheses or follow the English words "answer", "option" or "choice". An answer that names two options counts as none.
"""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float

_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace opens and closes nothing
_DROPPED = re.compile(
    r"\\left|\\right|\\[!,;: ]|\\(?:quad|qquad)\b|\\%|%|\\\$|[$€£¥₹°]|\^\{?\\circ\}?"
    r"|\\(?:text|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
# Words without a sign of arithmetic, other than a variable: a Latin or Greek letter that is no usual unit, or "xy".
_VARIABLE = r"(?![msghlLVWAJKCF]\b)[A-Za-z\u0370-\u03ff](?![^\W\d_])|[xyzXYZ]+\b"
_UNIT = re.compile(rf"(?<=\d)\s*(?!{_VARIABLE})[^\W\d_][^\d+\-*=^<>(){{}}\\]*$")
_THOUSANDS = re.compile(r"\d{1,3}([,'’٬ ])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_DOTTED = re.compile(r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}")
_DECIMAL = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_MIXED = re.compile(r"(\d+) *[+ ] *(\d+)/(\d+)")
_QUOTIENT = re.compile(r"([^/]+)/([^/]+)")
_SIGNS = str.maketrans({"\u2212": "-", "\u066b": "."})  # the minus sign and the Arabic decimal separator
LETTERS = "ABCDE"
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_MARKUP = re.compile(r"[*_`$]")


def boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{...}`, with balanced braces; None without one or if not closed."""
    opened = list(_BOXED.finditer(text))
    if not opened:
        return None
    begin, depth = opened[-1].end(), 1
    for brace in _BRACE.finditer(text, begin):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return text[begin : brace.start()].strip()
    return None


def mathematics(answers: Sequence[str | None], golds: Sequence[Sequence[str]]) -> Float[np.ndarray, " answers"]:
    r"""Returns 1 where the last `\boxed{}` holds a golden answer, else 0."""

    def is_right(answer: str | None, own: Sequence[str]) -> bool:
        content = boxed(answer or "")
        if content is None:
            return False
        for gold in own:
            wanted = number(gold)
            if wanted is not None and number(content) == wanted:
                return True
            if wanted is None and "".join(content.split()) == "".join(gold.split()) != "":
                return True
        return False

    return np.array([is_right(answer, own) for answer, own in zip(answers, golds, strict=True)], float)


def number(text: str) -> Fraction | None:
    """Returns the number that a text denotes by the rules above; None if it is not a number."""
    # Reduced to ASCII digits and signs, and fractions with a slash.
    text = "".join(map(_plain_character, text)).rpartition("=")[2].replace("{,}", ",")
    text = _DROPPED.sub(" ", _FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]}", text))
    value = _UNIT.sub("", " ".join(re.sub("[()]", "", text).split())).strip().rstrip(".")
    sign = -1 if value.startswith("-") else 1
    value = value[1:].strip() if value.startswith(("-", "+")) else value
    if mixed := _MIXED.fullmatch(value):
        whole, above, below = map(int, mixed.groups())
        return sign * (whole + Fraction(above, below)) if below else None
    if quotient := _QUOTIENT.fullmatch(value):
        numerator, denominator = (_decimal(part.strip()) for part in quotient.groups())
        return sign * numerator / denominator if numerator is not None and denominator else None
    decimal = _decimal(value)
    return None if decimal is None else sign * decimal


def _plain_character(character: str) -> str:
    """Normalises a character (NFKC): `½` becomes ` 1/2`; a superscript digit becomes a power, which is not a number."""
    form = unicodedata.decomposition(character).partition(" ")[0]
    if form == "<fraction>":
        return f" {unicodedata.normalize('NFKC', character)}".replace("\u2044", "/")
    plain = unicodedata.normalize("NFKC", character)
    digits = "".join(str(unicodedata.digit(each)) if each.isdigit() else each for each in plain)
    return f"^{digits}" if form == "<super>" else digits.translate(_SIGNS)


def _decimal(text: str) -> Fraction | None:
    if separated := _THOUSANDS.fullmatch(text):
        text = text.replace(separated[1], "")
    elif _DOTTED.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def multiple_choice(answers: Sequence[str | None], golds: Sequence[Sequence[str]]) -> Float[np.ndarray, " answers"]:
    """Returns 1 where the chosen option is a golden letter, else 0."""
    chosen = [option(answer or "") for answer in answers]
    wanted = [{gold.strip().upper() for gold in own} for own in golds]
    return np.array([letter in own for letter, own in zip(chosen, wanted, strict=True)], float)


def option(text: str, letters: str = LETTERS) -> str | None:
    """Returns the letter of the option that a text chooses by the rules above; None if it chooses none or several."""
    content = boxed(text)
    plain = _MARKUP.sub("", _TEXT.sub(r"\1", text if content is None else content))
    plain = unicodedata.normalize("NFKC", plain).strip()
    if whole := re.fullmatch(
        rf"\W*([{letters}{letters.lower()}])(?:\W*|[.:)](?!.*\b[{letters}][.:)]).*)", plain, re.DOTALL
    ):
        return whole[1].upper()
    named = re.findall(rf"\(([{letters}])\)|\b(?i:answer|option|choice)\b\W*(?:is\b\W*)?([{letters}])\b", plain)
    found = {first or second for first, second in named}
    return found.pop() if len(found) == 1 else None
