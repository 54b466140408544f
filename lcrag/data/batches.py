"""Seeded orders, splits and shares of questions, and the questions of each training step."""

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import gin
import numpy as np

from lcrag.data.questions import Question
from lcrag.errors import UserError, typed

Coupled = tuple[Question, ...]
Key = TypeVar("Key")


def coupled(questions: Iterable[Question]) -> list[Coupled]:
    """Groups the language versions of each question, in the order in which the questions first appear."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.coupling, []).append(question)
    return [tuple(group) for group in groups.values()]


def groups_of_step(table: Sequence[Coupled], *, seed: int, step: int, couplings: int) -> list[Coupled]:
    """Returns the `couplings` questions of one step, each in all the language versions of the table.

    Every epoch visits the table once in its own random order. No question occurs twice in a step, even at the boundary
    of two epochs.
    """
    return [table[row] for row in rows_of_step(len(table), seed=seed, step=step, size=couplings)]


def rows_of_step(count: int, *, seed: int, step: int, size: int) -> np.ndarray:
    """Returns the rows of a step, int64[size] in [0, count): a pure function, so a resumed run draws the same ones.

    They are consecutive elements of an endless sequence of permutations.
    """
    if not 1 <= size <= count:
        raise UserError(f"a step of {size} questions cannot be drawn from {count}: choose between 1 and {count}")
    places = np.arange(step * size, (step + 1) * size)
    epochs, offsets = places // count, places % count
    orders = {epoch: _order_of_epoch(count, seed, int(epoch), size) for epoch in np.unique(epochs)}
    return np.array([orders[epoch][offset] for epoch, offset in zip(epochs, offsets, strict=True)], np.int64)


def _order_of_epoch(count: int, seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns the permutation of an epoch, whose first `size` rows differ from the last `size` of the epoch before.

    Rows that occur in both are swapped with rows of the middle, so the tail of an epoch does not depend on earlier
    epochs. A table with no middle (fewer than 3 * size rows) has the same order in every epoch.
    """
    if count < 3 * size:
        return np.random.default_rng([seed, 0]).permutation(count)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    if epoch == 0:
        return order
    tail = np.random.default_rng([seed, epoch - 1]).permutation(count)[-size:]
    clashing = np.flatnonzero(np.isin(order[:size], tail))
    middle = np.arange(size, count - size)
    free = middle[~np.isin(order[middle], tail)]  # at least count - 3 size + len(clashing) of them
    order[clashing], order[free[: len(clashing)]] = order[free[: len(clashing)]], order[clashing]
    return order


def in_all(versions: Sequence[Mapping[Key, Any]]) -> list[Key]:
    """Returns the keys that all versions have, in the order of the first version."""
    return [key for key in versions[0] if all(key in version for version in versions)] if versions else []


def seeded_order(keys: Iterable[str], seed: int) -> list[str]:
    """Sorts keys by the SHA-256 of seed and key, so the order of two keys does not depend on other keys."""
    return sorted(keys, key=lambda key: (hashlib.sha256(f"{seed}:{key}".encode()).digest(), key))


def in_share(key: str, share: float, seed: int) -> bool:
    """Returns whether a key is in the seed's share (0 to 1) of all keys; smaller shares are subsets of larger ones."""
    return zlib.crc32(f"{seed}/{key}".encode()) < share * 2**32


def take_split(keys: Iterable[str], split: str, sizes: Mapping[str, int], *, seed: int, what: str) -> Sequence[str]:
    """Returns the keys of one split: consecutive pieces of the seeded order, in the order of `sizes`.

    A smaller last split is a prefix of a larger one and leaves the other splits unchanged.

    Args:
      split: Name of the split; "all": every key.
      sizes: Split -> its number of keys.
      what: Name of the keys in messages: "questions of mkqa".
    """
    order = seeded_order(keys, seed)
    if split == "all":
        return order
    if split not in sizes:
        raise UserError(f"there is no split {split!r} of the {what}: use one of {', '.join([*sizes, 'all'])}")
    if sum(sizes.values()) > len(order) or min(sizes.values()) < 0:
        wanted = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(f"the {len(order)} usable {what} cannot be split into {wanted}: ask for smaller splits")
    names = list(sizes)
    start = sum(sizes[name] for name in names[: names.index(split)])
    return order[start : start + sizes[split]]


def share_of(questions: Iterable[Question], share: float, *, seed: int) -> list[Question]:
    """Returns a share, in (0, 1], of the questions in their given order.

    A question is kept in all its languages or in none. With the same seed, a smaller share is a subset of every larger
    one.
    """
    if not 0 < share <= 1:
        raise UserError(f"cannot take a share of {share:g} of the questions: use a share above 0 and at most 1")
    table = {versions[0].coupling: versions for versions in coupled(questions)}
    kept = set(seeded_order(table, seed)[: max(1, round(share * len(table)))])
    return [question for name, versions in table.items() if name in kept for question in versions]


def limited(questions: Sequence[Question], limit: int | None, *, seed: int) -> list[Question]:
    """Returns at most `limit` questions of each language (None: all) in their given order.

    The choice depends only on seed and ids: if every language has all questions, all versions of a question are kept
    together, and a smaller limit keeps a subset of the questions of a larger one.
    """
    if limit is None:
        return list(questions)
    if limit < 1:
        raise UserError(f"the limit of the questions is {limit}: use at least 1, or None for all")
    ids: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        ids[question.language].append(question.id)
    kept = {(language, id) for language, of_language in ids.items() for id in seeded_order(of_language, seed)[:limit]}
    return [question for question in questions if (question.language, question.id) in kept]


@gin.configurable
@typed
def several_questions(parts: Sequence[Sequence[Question]]) -> list[Question]:
    """Returns the concatenated questions of several data sets."""
    return [question for part in parts for question in part]
