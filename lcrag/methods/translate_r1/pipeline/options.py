"""The options of a multiple-choice question, which stand behind it on lines of their own: `A. ...`, `(B) ...`."""

import dataclasses
import itertools
import re
import string
from collections.abc import Mapping

_OPTION = re.compile(r"^[ \t]*(?P<mark>\(?(?P<key>[A-Z])[.):])[ \t]*", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Options:
    """A multiple-choice question, taken apart.

    Attributes:
      stem: The question itself.
      texts: Option by its letter, in order from A.
      marks: How each letter was written, such as `A.` or `(A)`.
    """

    stem: str
    texts: Mapping[str, str]
    marks: Mapping[str, str]


def split_options(text: str) -> Options | None:
    """Takes a question apart at the last lines that begin with A, B, C, ... in turn; None where there are none."""
    found: list[re.Match[str]] = []
    for match in _OPTION.finditer(text):
        if match["key"] == "A":
            found = [match]
        elif found and match["key"] == string.ascii_uppercase[len(found)]:
            found.append(match)
    if not found:
        return None
    ends = [match.start() for match in found[1:]] + [len(text)]
    return Options(
        stem=text[: found[0].start()].strip(),
        texts={match["key"]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)},
        marks={match["key"]: match["mark"] for match in found},
    )


def join_options(stem: str, texts: Mapping[str, str], marks: Mapping[str, str]) -> str:
    """Puts a question together again, an option a line."""
    return "\n".join(itertools.chain([stem], (f"{marks[key]} {text}" for key, text in texts.items())))
