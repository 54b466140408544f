"""The atlas's texts in each language, read from `wording.json`: labels, questions, search queries and passages.

For each language, `of` puts the name of an entity into the form that a question contains ("of the country Finland"),
`facts` has (label of passage and search query, question) for each relation, and `bridges` puts the value of a relation
into the form of `of`, which makes questions over chains of facts. Names stand between spaces, in apposition in
languages that would otherwise inflect them or add an article: a name is the same string, and the same tokens,
everywhere.
"""

import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from babel.lists import format_list


@functools.cache
def wording() -> Mapping[str, Any]:
    return json.loads(pathlib.Path(__file__).with_name("wording.json").read_text(encoding="utf-8"))


UNKNOWN: Mapping[str, str] = wording()["unknown"]
# Value of a fact in a note when no passage states it.
UNREAD = "?"


def question_text(language: str, chain: Sequence[str], kind: str, name: str) -> str:
    """Returns the question for the value at the end of a chain of relations that begins at an entity of a kind."""
    texts = wording()["relations"][language]
    of = texts["of"][kind].format(name=name)
    for relation in chain[:-1]:
        of = texts["bridges"][relation].format(of=of)
    return " ".join(texts["facts"][chain[-1]][1].format(of=of).split())


def conjunction_text(language: str, relation: str, kind: str, names: Sequence[str]) -> str:
    """Returns the question for a relation of each of several entities of a kind."""
    texts = wording()["relations"][language]
    before, after = texts["of"][kind].split("{name}")
    of = listed([before + name for name in names], language) + after
    return " ".join(texts["facts"][relation][1].format(of=of).split())


def listed(items: Sequence[str], language: str) -> str:
    """Returns the items as the language writes lists (CLDR); a space keeps an item apart from a letter after it."""
    text = format_list([f"{item}\0" for item in items], locale=language)
    return re.sub(r"\0(?=\w)", " ", text).replace("\0", "")


def label(language: str, relation: str) -> str:
    """Returns the label of a relation in passages and queries, unique among relations of one kind of subject."""
    return wording()["relations"][language]["facts"][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    """Returns the short search query for the passage of a fact."""
    return f"{name} {label(language, relation)}"


def sentence_text(language: str, relation: str, value: str, year: int | None = None) -> str:
    """Returns the sentence of a fact in a passage, like an entry of an info box.

    The year of which it speaks, if any, tells old entries from present ones.
    """
    return f"{label(language, relation)}{'' if year is None else f' ({year})'}: {value}"
