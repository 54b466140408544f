"""Whether a passage holds a golden answer, so that whoever reads it could answer (GlobalRAG, appendix B)."""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from lcrag.rewards.mixed_segmentation import segmented
from lcrag.rewards.text import normalise_english

_HANGUL = re.compile("([\uac00-\ud7af])")


def holds_answer(passages: Iterable[str], golds: Iterable[str]) -> bool:
    """Whether a golden answer stands in one of the passages as whole words, case, articles and punctuation aside.

    Punctuation is deleted or separates, whichever makes the two meet: "U.S." stands in "the US army", and "1999" in
    "1999–2001". In scripts that do not space their words, and in Korean, whose particles cling to them, each character
    is a word, so an answer may stand anywhere. A gold of which nothing is left stands nowhere.

    Args:
      passages: Texts of passages, titles included.
      golds: Golden answers and their aliases.
    """
    wanted = [list(_forms(gold)) for gold in golds]
    return any(
        words != "  " and words in text
        for passage in passages
        for place, text in enumerate(_forms(passage))
        for words in (forms[place] for forms in wanted)
    )


def _forms(text: str) -> Iterator[str]:
    """The words of a text between spaces: without its punctuation, and with a space for each sign of it."""
    for form in (text, text.translate(_spaces())):
        apart = _HANGUL.sub(r" \1 ", segmented(form))
        yield f" {normalise_english(apart)} "


@functools.cache
def _spaces() -> Mapping[int, str]:
    """A space for every sign of punctuation and every symbol."""
    return {code: " " for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "PS"}
