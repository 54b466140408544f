"""Seeded orders, splits and shares; the batch of step n is a function of (seed, n)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.batches import (
    coupled,
    groups_of_step,
    in_share,
    limited,
    rows_of_step,
    seeded_order,
    share_of,
    take_split,
)
from lcrag.data.languages import LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.errors import UserError

keys = st.lists(st.text(max_size=5), unique=True, min_size=6, max_size=30)
SIZES = {"test": 2, "validation": 1, "train": 3}


@given(keys, st.integers(0, 5), st.randoms())
def test_the_order_depends_on_names_and_seed_only(names, seed, random):
    order = seeded_order(names, seed)
    shuffled = random.sample(names, len(names))
    assert (sorted(order), seeded_order(shuffled, seed)) == (sorted(names), order)
    less = seeded_order(names[1:], seed)
    assert less == [name for name in order if name != names[0]]


@given(keys, st.integers(0, 5))
def test_splits_are_apart_and_smaller_training_sets_are_nested(names, seed):
    def split(name, **sizes):
        return take_split(names, name, SIZES | sizes, seed=seed, what="names")

    parts = [set(split(name)) for name in SIZES]
    assert ([len(part) for part in parts], len(set.union(*parts))) == ([2, 1, 3], 6)
    assert split("train", train=2) == split("train")[:2]
    assert split("test", train=1) == split("test")
    assert set(split("all")) == set(names)


@pytest.mark.parametrize(
    "call",
    [
        lambda: take_split("abcdefghi", "dev", SIZES, seed=0, what="names"),
        lambda: take_split("abcde", "test", SIZES, seed=0, what="names"),
        lambda: take_split("abcde", "test", {"test": -1}, seed=0, what="names"),
        *(lambda share=share: share_of(QUESTIONS, share, seed=0) for share in (0.0, 1.5, float("nan"))),
        *(lambda size=size: groups_of_step(coupled(TABLE), seed=0, step=0, couplings=size) for size in (0, 12)),
        lambda: limited(QUESTIONS, 0, seed=0),
    ],
)
def test_mistakes(call):
    with pytest.raises(UserError):
        call()


def test_a_share_is_about_as_large_as_wanted_and_part_of_a_larger_one():
    keys = [str(number) for number in range(2000)]
    small, large = ({key for key in keys if in_share(key, share, seed=1)} for share in (0.2, 0.6))
    assert small < large
    assert 0.15 < len(small) / len(keys) < 0.25
    assert 0.55 < len(large) / len(keys) < 0.65
    assert small != {key for key in keys if in_share(key, 0.2, seed=2)}
    assert not any(in_share(key, 0.0, seed=1) for key in keys)
    assert all(in_share(key, 1.0, seed=1) for key in keys)


QUESTIONS = [
    Question(id=str(number), dataset="d", language=language, text="?", answers=("a",))
    for number in range(40)
    for language in ("en", "fi", "ja")
]


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(0, 3))
def test_smaller_shares_are_parts_of_larger_ones(one, other, seed):
    small, large = (share_of(QUESTIONS, share, seed=seed) for share in sorted((one, other)))
    assert set(q.id for q in small) <= set(q.id for q in large)
    assert len(large) == 3 * max(1, round(max(one, other) * 40)), "every question in all its languages"
    assert large == [question for question in QUESTIONS if question in large], "in the order in which they came"
    assert share_of(QUESTIONS, 1.0, seed=seed) == QUESTIONS
    assert share_of(QUESTIONS, 0.5, seed=seed) != share_of(QUESTIONS, 0.5, seed=seed + 1)


@given(st.integers(1, 45), st.integers(1, 45), st.integers(0, 3))
def test_a_number_of_questions_in_all_their_languages(one, other, seed):
    small, large = (limited(QUESTIONS, limit, seed=seed) for limit in sorted((one, other)))
    assert (len(large), len({each.id for each in large}) * 3) == (3 * min(40, max(one, other)), len(large))
    assert {each.id for each in small} <= {each.id for each in large}
    assert large == [question for question in QUESTIONS if question in large], "in the order in which they came"


def test_a_number_of_questions_of_each_language():
    fewer = [each for each in QUESTIONS if each.language != "ja" or int(each.id) < 2]
    languages = [each.language for each in limited(fewer, 5, seed=0)]
    assert [languages.count(code) for code in ("en", "fi", "ja")] == [5, 5, 2]
    assert limited(fewer, None, seed=0) == fewer
    assert limited(QUESTIONS, 5, seed=0) != limited(QUESTIONS, 5, seed=1)


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


def test_a_step_holds_all_versions_of_its_questions():
    for step in range(5):
        chosen = groups_of_step(coupled(TABLE), seed=0, step=step, couplings=2)
        assert [len(group) for group in chosen] == 2 * [len(LCRL_TRAINING)]
        assert len({row.coupling for group in chosen for row in group}) == 2
        assert chosen != groups_of_step(coupled(TABLE), seed=1, step=step, couplings=2)
