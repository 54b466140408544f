"""The batch of step n is a function of (seed, n); coupled groups hold the versions they should."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.batches import coupled, groups_of_step, rows_of_step
from lcrag.data.languages import LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.errors import UserError


def question(number: int, language: str) -> Question:
    return Question(
        id=str(number), dataset="d", language=language, text=f"{language}{number}?", answers=(f"{language}-{number}",)
    )


TABLE = [question(number, language) for number in range(11) for language in LCRL_TRAINING]
sizes = st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(sizes, st.integers(0, 3), st.integers(0, 3))
def test_every_row_comes_once_an_epoch(size_of_table_and_step, seed, epoch):
    count, size = size_of_table_and_step
    first, last = epoch * count // size, -(-(epoch + 1) * count // size)
    rows = np.concatenate([rows_of_step(count, seed=seed, step=step, size=size) for step in range(first, last)])
    skipped = epoch * count - first * size
    assert sorted(rows[skipped : skipped + count]) == list(range(count))


@given(sizes, st.integers(0, 3), st.integers(0, 200))
def test_no_row_comes_twice_in_a_step(size_of_table_and_step, seed, step):
    count, size = size_of_table_and_step
    rows = rows_of_step(count, seed=seed, step=step, size=size)
    assert len(set(rows)) == size


def test_resuming_at_any_step_gives_the_same_questions():
    table = coupled(TABLE)
    straight = [groups_of_step(table, seed=5, step=step, couplings=3) for step in range(8)]
    for start in (0, 3, 7):
        assert groups_of_step(table, seed=5, step=start, couplings=3) == straight[start]
    other = [groups_of_step(table, seed=6, step=step, couplings=3) for step in range(8)]
    assert other != straight


def test_a_step_holds_all_versions_of_its_questions():
    for step in range(5):
        chosen = groups_of_step(coupled(TABLE), seed=0, step=step, couplings=2)
        assert [len(group) for group in chosen] == 2 * [len(LCRL_TRAINING)]
        assert len({row.coupling for group in chosen for row in group}) == 2


@pytest.mark.parametrize("size", [0, 12])
def test_a_step_larger_than_the_table_is_refused(size):
    with pytest.raises(UserError, match="choose between 1 and 11"):
        groups_of_step(coupled(TABLE), seed=0, step=0, couplings=size)
