"""Text normalisation and segmentation: the forms in which two texts are compared."""

import functools
import re
import string
import sys
import unicodedata
from collections.abc import Iterable, Mapping

import zhconv

from lcrag.errors import UserError

CJK_PUNCTUATION = "！？。，、；：（）【】《》〈〉「」『』"
CURLY_QUOTES = "‘’‚‛“”„‟"
# Short vowels, nunation, shadda, sukun, dagger alif; tatweel. CAMeL Tools' dediacritisation deletes the same.
ARABIC_MARKS = "\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652\u0670\u0640"

NORMALISATIONS = ("lcrl", "unicode")

_SPACES: dict[int, str | None] = dict.fromkeys(map(ord, string.punctuation + CJK_PUNCTUATION + CURLY_QUOTES), " ")
_DELETED = str.maketrans("", "", string.punctuation)
_HAN = re.compile("[\u4e00-\u9fff]")
_CJK = "[\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7af]"
_SPACE_BETWEEN_CJK = re.compile(f"(?<={_CJK}) (?={_CJK})")
# Han, kana, Thai, Lao, Burmese and Khmer; Korean separates words by spaces.
_UNSPACED = re.compile(
    "([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])"
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@functools.lru_cache(maxsize=1 << 16)
def normalise(text: str, normalisation: str = "lcrl") -> str:
    """Normalises a text for comparisons in any language; `code_points.normalised` does the same for whole batches.

    "lcrl" is LcRL's normalisation (code published with the paper; section 3.3). In order: lower-case, NFKC, Chinese
    characters to simplified (mainland) ones, ASCII and CJK punctuation and curly quotes (our addition) to a space,
    white space collapsed, spaces between CJK characters (Han, kana, Hangul syllables) removed.

    "unicode" differs in three ways: lower-case and NFKC are applied twice ("20 ℃" equals "20 °c"), all of Unicode's
    punctuation becomes a space (guillemets, the middle dot, inverted and Arabic marks), and Arabic diacritics and
    tatweel are deleted.

    Cached, because golds repeat over a run.
    """
    for _ in range(2 if normalisation == "unicode" else 1):
        text = unicodedata.normalize("NFKC", text.lower())
    if _HAN.search(text):
        text = zhconv.convert(text, "zh-cn")
    text = " ".join(text.translate(replacements(normalisation)).split())
    return _SPACE_BETWEEN_CJK.sub("", text)


@functools.cache
def replacements(normalisation: str) -> Mapping[int, str | None]:
    """Returns the translation table of punctuation, to a space, and of deleted characters, to None."""
    if normalisation == "lcrl":
        return _SPACES
    if normalisation == "unicode":
        punctuation = (code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "P")
        return _SPACES | dict.fromkeys(punctuation, " ") | dict.fromkeys(map(ord, ARABIC_MARKS), None)
    raise UserError(f"no normalisation is called {normalisation!r}: choose one of {', '.join(NORMALISATIONS)}")


@functools.lru_cache(maxsize=1 << 16)
def normalise_english(text: str) -> str:
    """Applies SQuAD's normalisation: lower-case, no ASCII punctuation, no English articles, white space collapsed.

    BERGEN and the English multi-hop benchmarks use it.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETED)).split())


def normalised_english(texts: Iterable[str | None]) -> list[str]:
    """Applies `normalise_english` to every text; None becomes the empty string."""
    return [normalise_english(text) if text else "" for text in texts]


def segmented(text: str) -> str:
    """Separates the characters of scripts without spaces between words, and deletes non-ASCII punctuation."""
    if text.isascii():
        return text
    characters = unicodedata.normalize("NFKC", text)
    kept = [each for each in characters if each.isascii() or not unicodedata.category(each).startswith("P")]
    return _UNSPACED.sub(r" \1 ", "".join(kept))
