"""The questions of step n, as a function of (seed, n) alone: nothing to save, nothing to restore."""

from collections.abc import Iterable, Sequence

import numpy as np

from lcrag.data.questions import Question
from lcrag.errors import UserError

Coupled = tuple[Question, ...]


def coupled(questions: Iterable[Question]) -> list[Coupled]:
    """Groups the language versions of each question, in the order in which the questions first appear."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.coupling, []).append(question)
    return [tuple(group) for group in groups.values()]


def groups_of_step(table: Sequence[Coupled], *, seed: int, step: int, couplings: int) -> list[Coupled]:
    """The questions of one step: `couplings` questions, each in all the language versions of the table.

    Every epoch goes once through the table in its own random order. No question comes twice in one step, not
    even where one epoch ends and the next begins.

    Args:
      table: Coupled questions, from `coupled`.
      seed: Names the order.
      step: Number of the step, from 0.
      couplings: Coupled questions in a step.

    Raises:
      UserError: a step would need more questions than the table has.
    """
    rows = rows_of_step(len(table), seed=seed, step=step, size=couplings)
    return [table[row] for row in rows]


def rows_of_step(count: int, *, seed: int, step: int, size: int) -> np.ndarray:
    """Rows in [0, count) of step `step`: consecutive places of an endless sequence of permutations, int64[size].

    Raises:
      UserError: `size` is not between 1 and `count`.
    """
    if not 1 <= size <= count:
        raise UserError(f"a step of {size} questions cannot be drawn from {count}: choose between 1 and {count}")
    places = np.arange(step * size, (step + 1) * size)
    epochs, offsets = places // count, places % count
    orders = {epoch: _order_of_epoch(count, seed, int(epoch), size) for epoch in np.unique(epochs)}
    return np.array([orders[epoch][offset] for epoch, offset in zip(epochs, offsets, strict=True)], np.int64)


def _order_of_epoch(count: int, seed: int, epoch: int, size: int) -> np.ndarray:
    """The permutation of an epoch, its head kept apart from the tail of the epoch before.

    Rows of the head that stood in that tail change places with rows of the middle, so that the tail itself never
    depends on earlier epochs. A table too small to have a middle keeps one order for good.
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
