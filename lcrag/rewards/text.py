"""Text normalisation: what two answers are reduced to before they are compared."""

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
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@functools.lru_cache(maxsize=1 << 16)
def normalise(text: str) -> str:
    """LcRL's normalisation, step for step: lower-case, NFKC, Chinese characters to simplified
    (mainland) ones, ASCII and CJK punctuation and curly quotes to a space, white space collapsed,
    spaces between CJK characters (Han, kana, Hangul syllables) removed.

    Source: the code published with LcRL (Section 3.3, the reward); curly quotes are ours.
    Golds repeat over a run, hence the cache.
    """
    text = unicodedata.normalize("NFKC", text.lower())
    if _HAN.search(text):
        text = zhconv.convert(text, "zh-cn")
    text = " ".join(text.translate(_SPACES).split())
    return _SPACE_BETWEEN_CJK.sub("", text)


@functools.lru_cache(maxsize=1 << 16)
def normalise_english(text: str) -> str:
    """SQuAD's normalisation: lower-case, ASCII punctuation deleted, English articles to a space,
    white space collapsed. BERGEN and the English multi-hop benchmarks use it.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETED)).split())


def normalised(texts: Iterable[str | None]) -> list[str]:
    """`normalise` of every text; None, an episode without an answer, is the empty string."""
    return [normalise(text) if text else "" for text in texts]


def normalised_english(texts: Iterable[str | None]) -> list[str]:
    """`normalise_english` of every text; None is the empty string."""
    return [normalise_english(text) if text else "" for text in texts]
