"""Which collections of a set a question may be searched in at all: the options of LcRL's figure 3.

A choice is a function (question, languages of the collection set) -> the languages its program is given. What the
program then does with them, search by search, is its route's affair (see `routing`).
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lcrag.data.questions import Question

CollectionChoice: TypeAlias = Callable[[Question, Sequence[str]], Sequence[str]]

# The languages of MKQA and XOR-TyDi QA by the articles of their Wikipedia editions (2024), the most first.
BY_SIZE = ("en", "de", "fr", "ru", "es", "it", "zh", "ja", "ar", "pt", "ko", "fi", "th", "bn", "te")
HIGH_RESOURCE = BY_SIZE[1:8]


def every_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """All languages of the set."""
    return languages


def native_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul: the language of the question."""
    return (question.language,)


def english_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """En: English, for every question. A program that begins at home needs the route `english_only` with it."""
    return ("en",)


def native_and_english(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul + En."""
    return _of_set((question.language, "en"), languages)


def native_english_and_high(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul + En + High: and one high-resource language more, drawn for each question by its name."""
    others = [code for code in HIGH_RESOURCE if code in languages and code != question.language]
    drawn = random.Random(question.key).choice(others) if others else question.language
    return _of_set((question.language, "en", drawn), languages)


def largest_collections(question: Question, languages: Sequence[str], *, count: int) -> Sequence[str]:
    """`count` languages: that of the question and the largest others."""
    order = sorted(languages, key=lambda code: BY_SIZE.index(code) if code in BY_SIZE else len(BY_SIZE))
    return _of_set((question.language, *(code for code in order if code != question.language)), languages)[:count]


def chosen_collections(question: Question, languages: Sequence[str], *, chosen: Sequence[str]) -> Sequence[str]:
    """The language of the question and those of a list, in its order."""
    return _of_set((question.language, *chosen), languages)


def _of_set(wanted: Sequence[str], languages: Sequence[str]) -> tuple[str, ...]:
    """Those wanted that are there, each once; the first, the native one, in any case."""
    first, *others = wanted
    return tuple(dict.fromkeys((first, *(code for code in others if code in languages))))
