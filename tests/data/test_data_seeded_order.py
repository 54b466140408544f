"""Splits by a seed and the items' names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.batches import in_share, seeded_order, take_split
from lcrag.errors import UserError

keys = st.lists(st.text(max_size=5), unique=True, min_size=6, max_size=30)
SIZES = {"test": 2, "validation": 1, "train": 3}


@given(keys, st.integers(0, 5), st.randoms())
def test_the_order_depends_on_names_and_seed_only(names, seed, random):
    order = seeded_order(names, seed)
    shuffled = random.sample(names, len(names))
    assert sorted(order) == sorted(names) and seeded_order(shuffled, seed) == order
    less = seeded_order(names[1:], seed)
    assert less == [name for name in order if name != names[0]]


@given(keys, st.integers(0, 5))
def test_splits_are_apart_and_smaller_training_sets_are_nested(names, seed):
    def split(name, **sizes):
        return take_split(names, name, SIZES | sizes, seed=seed, what="names")

    parts = [set(split(name)) for name in SIZES]
    assert [len(part) for part in parts] == [2, 1, 3] and len(set.union(*parts)) == 6
    assert split("train", train=2) == split("train")[:2]
    assert split("test", train=1) == split("test")
    assert set(split("all")) == set(names)


def test_seeds_differ():
    names = [str(number) for number in range(50)]
    assert seeded_order(names, 0) != seeded_order(names, 1)


def test_a_share_is_about_as_large_as_wanted_and_part_of_a_larger_one():
    keys = [str(number) for number in range(2000)]
    small, large = ({key for key in keys if in_share(key, share, seed=1)} for share in (0.2, 0.6))
    assert small < large and 0.15 < len(small) / len(keys) < 0.25 and 0.55 < len(large) / len(keys) < 0.65
    assert small != {key for key in keys if in_share(key, 0.2, seed=2)}
    assert not any(in_share(key, 0.0, seed=1) for key in keys) and all(in_share(key, 1.0, seed=1) for key in keys)


def test_mistakes_are_sentences():
    with pytest.raises(UserError, match="no split 'dev' of the names: use one of test, validation, train, all"):
        take_split(["a"] * 9, "dev", SIZES, seed=0, what="names")
    with pytest.raises(UserError, match="only 5 usable names for the splits test 2, validation 1, train 3"):
        take_split(list("abcde"), "test", SIZES, seed=0, what="names")
