"""Word F1 for every script: where words are not spaced, each character counts as one."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lcrag.rewards.matching import Answers, Golds, token_f1

# Han, kana, Thai, Lao, Burmese and Khmer; Korean spaces its words.
_UNSPACED = re.compile(
    "([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])"
)


def mixed_f1(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """`token_f1` of texts in mixed segmentation, as in MLQA's evaluation (Lewis et al., 2020, section 4.1).

    Compatible forms of a character are one (NFKC), punctuation of any script is deleted, and each character of a
    script that does not space its words is a word. Of ASCII texts it is `token_f1`.

    Args:
      predictions: Answers; None is the empty string.
      golds: Golden answers and their aliases.
    """
    return token_f1(_segmented(predictions), [_segmented(own) for own in golds])


def segmented(text: str) -> str:
    """The text with spaces around each character of an unspaced script, and without punctuation beyond ASCII."""
    if text.isascii():
        return text
    kept = [each for each in unicodedata.normalize("NFKC", text) if not _is_punctuation(each)]
    return _UNSPACED.sub(r" \1 ", "".join(kept))


def _is_punctuation(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character).startswith("P")


def _segmented(texts: Sequence[str | None]) -> list[str]:
    return [segmented(text or "") for text in texts]
