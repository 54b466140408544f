"""What counts as a word of a text, and what is left alone: numbers, LaTeX, symbols, single letters."""

import pathlib
import re
from collections.abc import Callable, Iterable

from lcrag.data.rows import read_text
from lcrag.errors import UserError

# In this order: display and inline mathematics (a dollar sign opens it before a character that is no white space, and
# closes it behind one and not before a digit, so that prices are none), environments, commands, and then any run of
# letters, digits and underscores. Which of them matches where depends on no letter of a word, so that a text whose
# words were replaced is taken apart at the same places.
_PIECES = re.compile(
    r"""
      \$\$.+?\$\$ | \\\[.+?\\\] | \\\(.+?\\\)
    | (?<![\\$])\$(?=[^\s$])[^$\n]*?(?<=[^\s\\])\$(?!\d)
    | \\(?:begin|end)\{[^}\n]*\} | \\[A-Za-z]+
    | \w+
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z]{2,}")


def replaced_words(text: str, replace: Callable[[str], str]) -> str:
    """The text with `replace(word)` in place of each word.

    A word is a run of two or more ASCII letters that touches no other letter, digit or underscore, outside of
    mathematics and commands of LaTeX. A single letter names a variable or an option and is none.
    """
    return _PIECES.sub(lambda match: replace(match[0]) if _WORD.fullmatch(match[0]) else match[0], text)


def words_of(text: str) -> list[str]:
    """The words of a text in their order, in lower case."""
    return [match[0].lower() for match in _PIECES.finditer(text) if _WORD.fullmatch(match[0])]


def vocabulary_of(texts: Iterable[str]) -> list[str]:
    """Every word of some texts once, in lower case, in the alphabet's order."""
    return sorted({word for text in texts for word in words_of(text)})


def read_word_list(path: str | pathlib.Path) -> list[str]:
    """A vocabulary from a file, a word a line, plain or gzipped.

    Raises:
      UserError: the file cannot be read, holds no word, or a line is none.
    """
    path = pathlib.Path(path)
    words = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        word = line.strip().lower()
        if word and not _WORD.fullmatch(word):
            raise UserError(
                f"{path}, line {number}: {line.strip()!r} is no word of two or more letters a to z: mend it"
            )
        words += [word] if word else []
    if not words:
        raise UserError(f"{path} holds no word: give a file with a word a line")
    return sorted(set(words))


def write_word_list(path: str | pathlib.Path, words: Iterable[str]) -> None:
    """Writes a vocabulary as `read_word_list` reads it."""
    pathlib.Path(path).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
