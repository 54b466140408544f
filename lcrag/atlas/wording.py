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
from collections.abc import Mapping, Sequence
from typing import Any


@functools.cache
def wording() -> Mapping[str, Any]:
    return json.loads(pathlib.Path(__file__).with_name("wording.json").read_text(encoding="utf-8"))


UNKNOWN: Mapping[str, str] = wording()["unknown"]


def question_text(language: str, chain: Sequence[str], kind: str, name: str) -> str:
    """Returns the question for the value at the end of a chain of relations that begins at an entity of a kind."""
    texts = wording()["relations"][language]
    of = texts["of"][kind].format(name=name)
    for relation in chain[:-1]:
        of = texts["bridges"][relation].format(of=of)
    return " ".join(texts["facts"][chain[-1]][1].format(of=of).split())


def label(language: str, relation: str) -> str:
    """Returns the label of a relation in passages and queries, unique among relations of one kind of subject."""
    return wording()["relations"][language]["facts"][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    """Returns the short search query for the passage of a fact."""
    return f"{name} {label(language, relation)}"


def sentence_text(language: str, relation: str, value: str, year: int | None = None) -> str:
    """Returns the sentence of a fact in a passage, like an entry of an info box.

    Args:
      language: Its language.
      relation: Relation of the fact.
      value: Its value, as written in the language.
      year: Year of which the entry speaks, which tells old entries from present ones; None: undated.
    """
    return f"{label(language, relation)}{'' if year is None else f' ({year})'}: {value}"
