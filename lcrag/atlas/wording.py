"""The atlas's texts in each language, read from `wording.json`: labels, questions, search queries and passages.

`facts` has (label of the passage and of the search query, question) for each language and relation. In languages that
would inflect a name or add an article it is in apposition, and it stands between spaces in every script: a name is the
same string, and the same tokens, everywhere.
"""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any


@functools.cache
def wording() -> Mapping[str, Any]:
    """Returns the content of `wording.json`."""
    return json.loads(pathlib.Path(__file__).with_name("wording.json").read_text(encoding="utf-8"))


WORDING: Mapping[str, Mapping[str, tuple[str, str]]] = {
    language: {relation: (label, question) for relation, (label, question) in texts.items()}
    for language, texts in wording()["facts"].items()
}
UNKNOWN: Mapping[str, str] = wording()["unknown"]


def question_text(language: str, key: str, name: str) -> str:
    """The question of a relation, or of a composition "first+second", about `name`."""
    return WORDING[language][key][1].format(name=name)


def label(language: str, relation: str) -> str:
    """The words that name a relation in passages and queries; unique among relations of one kind of subject."""
    return WORDING[language][relation][0]


def query_text(language: str, relation: str, name: str) -> str:
    """The short search query that finds the passage of a fact."""
    return f"{name} {label(language, relation)}"


def passage_text(language: str, relation: str, value: str) -> str:
    """The passage of a fact without its title, in the manner of an info box: the label, then the value."""
    return f"{label(language, relation)}: {value}"
