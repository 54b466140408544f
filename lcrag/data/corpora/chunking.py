"""Cuts texts into passages of 100 words, or of 100 characters in scripts without spaces between words.

As in LcRL (Appendix A.2), the title does not count and precedes every passage. tensorflow-text finds the words and
characters.
"""

import functools
import types
import unicodedata
from collections.abc import Sequence
from typing import Literal

from babel.core import get_global

from lcrag.errors import UserError

Unit = Literal["words", "characters"]

PASSAGE_LENGTH = 100
# ISO 15924 codes of the scripts that put no spaces between words.
_UNSPACED_SCRIPTS = frozenset("Hans Hant Hani Jpan Thai Laoo Khmr Mymr Tibt Lana Talu Tale Yiii".split())


def unit_of(language: str) -> Unit:
    """Returns the unit of a language's passages, by the script that CLDR considers most likely.

    Args:
      language: A code as in Wikipedia: "fi", "zh", "zh-yue"; only the part before a hyphen or underscore counts.
    """
    code = language.replace("_", "-").partition("-")[0]
    likely = get_global("likely_subtags").get(code, "")
    return "characters" if _UNSPACED_SCRIPTS.intersection(likely.split("_")) else "words"


def chunks(texts: Sequence[str], unit: Unit, length: int = PASSAGE_LENGTH) -> list[list[str]]:
    """Cuts each text into consecutive pieces of `length` words or characters; white space becomes single spaces.

    No piece begins with a combining mark, such as a Thai vowel: it stays with its base character.
    """
    if length < 1:
        raise UserError(f"passages cannot have {length} {unit}: use at least one")
    if not texts:
        return []
    normalised = [" ".join(text.split()) for text in texts]
    tokenizer = _tensorflow_text().WhitespaceTokenizer if unit == "words" else _tensorflow_text().UnicodeCharTokenizer
    tokens, starts, ends = tokenizer().tokenize_with_offsets(normalised)
    characters = tokens.values.numpy() if unit == "characters" else None
    first_bytes, last_bytes, bounds = starts.values.numpy(), ends.values.numpy(), starts.row_splits.numpy().tolist()
    cut = []
    for text, first, end in zip(normalised, bounds[:-1], bounds[1:], strict=True):
        content, pieces, start = text.encode(), [], first  # offsets count bytes
        while start < end:
            stop = min(start + length, end)
            while characters is not None and stop < end and unicodedata.category(chr(characters[stop])).startswith("M"):
                stop += 1
            pieces.append(content[first_bytes[start] : last_bytes[stop - 1]].decode().strip())
            start = stop
        cut.append([piece for piece in pieces if piece])
    return cut


@functools.cache
def _tensorflow_text() -> types.ModuleType:
    """Imports tensorflow-text and hides the accelerators from TensorFlow, which would allocate all of their memory."""
    import tensorflow
    import tensorflow_text

    tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow_text
