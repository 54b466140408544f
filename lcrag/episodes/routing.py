"""Which collections a search goes to: the one line in which LcRL and its ablations differ.

A route is a function (search number from 1, the question's language, languages of the collection set)
-> languages to search, in order. A native language without a collection is still asked for: the search
then says so, rather than the method quietly becoming another one.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Route: TypeAlias = Callable[[int, str, Sequence[str]], tuple[str, ...]]


def local_first(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """LcRL, section 3.1: the native collection, then all others, then English as the anchor.

    With no other collection the second search stays native; without English so do the later ones.
    """
    others = tuple(language for language in collections if language != native)
    if search == 2 and others:
        return others
    return ("en",) if search > 2 and "en" in collections else (native,)


def available_first(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """`local_first`, for questions in languages without a collection, too: their first search goes to English.

    So where the native language has none, the translated question is searched in English, then in all others. Without
    English the first collection of the set takes its place.
    """
    home = native if native in collections else "en" if "en" in collections else next(iter(collections), native)
    return local_first(search, home, collections)


def native_only(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """The ablation without multi-language rollout: every search goes to the native collection (LcRL, table 2)."""
    return (native,)


def english_only(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """Search-R1: every search goes to the English collection."""
    return ("en",)


def all_at_once(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """Every search goes to every collection, the native one first: the unitive process LcRL argues against."""
    return tuple(sorted(collections, key=lambda language: language != native))
