"""Text normalisation and segmentation: the forms in which two texts are compared."""

import functools
import re
import string
import unicodedata
from collections.abc import Iterable

import zhconv

CJK_PUNCTUATION = "！？。，、；：（）【】《》〈〉「」『』"
CURLY_QUOTES = "‘’‚‛“”„‟"

_SPACES = str.maketrans(dict.fromkeys(string.punctuation + CJK_PUNCTUATION + CURLY_QUOTES, " "))
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
def normalise(text: str) -> str:
    """Applies LcRL's normalisation (code published with the paper; section 3.3).

    In order: lower-case, NFKC, Chinese characters to simplified (mainland) ones, ASCII and CJK punctuation and curly
    quotes (our addition) to a space, white space collapsed, spaces between CJK characters (Han, kana, Hangul
    syllables) removed. Cached, because golds repeat over a run.
    """
    text = unicodedata.normalize("NFKC", text.lower())
    if _HAN.search(text):
        text = zhconv.convert(text, "zh-cn")
    text = " ".join(text.translate(_SPACES).split())
    return _SPACE_BETWEEN_CJK.sub("", text)


@functools.lru_cache(maxsize=1 << 16)
def normalise_english(text: str) -> str:
    """Applies SQuAD's normalisation: lower-case, no ASCII punctuation, no English articles, white space collapsed.

    BERGEN and the English multi-hop benchmarks use it.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETED)).split())


def normalised(texts: Iterable[str | None]) -> list[str]:
    """Normalises every text; None (an episode without an answer) becomes the empty string."""
    return [normalise(text) if text else "" for text in texts]


def normalised_english(texts: Iterable[str | None]) -> list[str]:
    """Applies `normalise_english` to every text; None becomes the empty string."""
    return [normalise_english(text) if text else "" for text in texts]


def segmented(text: str) -> str:
    """Separates the characters of scripts without spaces between words, and deletes non-ASCII punctuation."""
    if text.isascii():
        return text
    kept = [each for each in unicodedata.normalize("NFKC", text) if not _is_punctuation(each)]
    return _UNSPACED.sub(r" \1 ", "".join(kept))


def _is_punctuation(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character).startswith("P")
