"""The atlas's texts in each language, read from `wording.json`: labels, questions, search queries and passages.

`facts` has (label of passage and search query, question) for each language and relation. Names stand between spaces, in
apposition in languages that would otherwise inflect them or add an article, so a name is the same string, and the same
tokens, everywhere.
"""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any


@functools.cache
def wording() -> Mapping[str, Any]:
    return json.loads(pathlib.Path(__file__).with_name("wording.json").read_text(encoding="utf-8"))


WORDING: Mapping[str, Mapping[str, tuple[str, str]]] = {
    language: {relation: (label, question) for relation, (label, question) in texts.items()}
    for language, texts in wording()["facts"].items()
}
UNKNOWN: Mapping[str, str] = wording()["unknown"]


def question_text(language: str, key: str, name: str) -> str:
    """Returns the question about `name` for a relation, or a composition "first+second"."""
    return WORDING[language][key][1].format(name=name)


def label(language: str, relation: str) -> str:
    """Returns the label of a relation in passages and queries, unique among relations of one kind of subject."""
    return WORDING[language][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    """Returns the short search query for the passage of a fact."""
    return f"{name} {label(language, relation)}"


def passage_text(language: str, relation: str, value: str) -> str:
    """Returns the passage of a fact without its title, like a line of an info box: the label, then the value."""
    return f"{label(language, relation)}: {value}"
