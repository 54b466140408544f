"""Choices of the collections for a question, and routes: which of them each search goes to.

A route is a function (search number from 1, the question's language, languages of the collection set) -> languages to
search, in order. LcRL and its ablations differ only in their route. A native language without a collection is
still searched: the search then fails, rather than silently turning the method into another one.

A collection choice is a function (question, languages of the collection set) -> the languages given to the question's
program: the options of LcRL's figure 3.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

import gin

from lcrag.data.questions import Question

Route: TypeAlias = Callable[[int, str, Sequence[str]], tuple[str, ...]]
CollectionChoice: TypeAlias = Callable[[Question, Sequence[str]], Sequence[str]]

# The languages of MKQA and XOR-TyDi QA by the articles of their Wikipedia editions (2024), largest first.
BY_SIZE = ("en", "de", "fr", "ru", "es", "it", "zh", "ja", "ar", "pt", "ko", "fi", "th", "bn", "te")
HIGH_RESOURCE = BY_SIZE[1:8]


@gin.register
def local_first(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """LcRL, section 3.1: the native collection, then all others, then English as the anchor.

    Without other collections the second search stays native; without English the later ones do.
    """
    others = tuple(language for language in collections if language != native)
    if search == 2 and others:
        return others
    return ("en",) if search > 2 and "en" in collections else (native,)


@gin.register
def available_first(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """`local_first`, but languages without a collection start in English, or in the first collection of the set."""
    home = native if native in collections else "en" if "en" in collections else next(iter(collections), native)
    return local_first(search, home, collections)


@gin.register
def native_only(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """The ablation without multi-language rollout: every search goes to the native collection (LcRL, table 2)."""
    return (native,)


@gin.register
def english_only(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """Search-R1: every search goes to the English collection."""
    return ("en",)


@gin.register
def all_at_once(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """Every search goes to every collection, the native one first: the "unitive" process that LcRL argues against."""
    return tuple(sorted(collections, key=lambda language: language != native))


@gin.register
def every_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """All languages of the set."""
    return languages


@gin.register
def native_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul: the language of the question."""
    return (question.language,)


@gin.register
def english_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """En: English for every question. Programs that search the native collection also need the route `english_only`."""
    return ("en",)


@gin.register
def native_and_english(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul + En."""
    return _available((question.language, "en"), languages)


@gin.register
def native_english_and_high(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul + En + High: also one other high-resource language, drawn with the question as the seed."""
    others = [code for code in HIGH_RESOURCE if code in languages and code != question.language]
    drawn = random.Random(f"{question.coupling}/{question.language}").choice(others) if others else question.language
    return _available((question.language, "en", drawn), languages)


@gin.configurable(denylist=["question", "languages"])
def largest_collections(question: Question, languages: Sequence[str], *, count: int) -> Sequence[str]:
    """`count` languages: the question's, and the largest others."""
    order = sorted(languages, key=lambda code: BY_SIZE.index(code) if code in BY_SIZE else len(BY_SIZE))
    return _available((question.language, *(code for code in order if code != question.language)), languages)[:count]


@gin.configurable(denylist=["question", "languages"])
def chosen_collections(question: Question, languages: Sequence[str], *, chosen: Sequence[str]) -> Sequence[str]:
    """The question's language, then those of `chosen` in their order."""
    return _available((question.language, *chosen), languages)


def _available(wanted: Sequence[str], languages: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted languages of the set, each once, and always the first, native one."""
    first, *others = wanted
    return tuple(dict.fromkeys((first, *(code for code in others if code in languages))))
