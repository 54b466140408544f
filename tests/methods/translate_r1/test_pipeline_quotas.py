"""Which sources go to which languages, and how places are filled with what passes."""

import asyncio
import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st
from translation_sources import CHOICE, PROBLEM, USUAL, question

from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.stages import fill, filter_sources, quotas_of


def test_sources_are_sifted_and_put_in_one_order_for_all_languages():
    questions = [question(PROBLEM.replace("Anna", f"Anna {n}"), number=n) for n in range(6)]
    questions += [question("1 + 1", number=9), question(CHOICE, "B", domain="multiple_choice", number=10)]
    finnish = question("Anna ostaa omenoita. Montako?", language="fi", number=3)
    sources = filter_sources([finnish, *questions], USUAL, preferred="en", seed=0)
    assert [each.cause for each in sources.removed] == ["too little natural language"]
    assert {name: len(pool) for name, pool in sources.pools.items()} == {"mathematics": 6, "multiple_choice": 1}
    [both] = [each for each in sources.pools["mathematics"] if len(each) == 2]
    assert [each.language for each in both] == ["en", "fi"]
    reverse = filter_sources([*questions[::-1], finnish], USUAL, preferred="en", seed=0)
    assert reverse.pools == sources.pools
    assert filter_sources(questions, USUAL, preferred="en", seed=1).pools != sources.pools
    quotas = quotas_of(sources, ("fi", "am"), {"fi": 2, "am": 5}, together=False)
    assert [(quota.domain.name, *quota.languages, quota.places) for quota in quotas] == [
        ("mathematics", "fi", 2), ("mathematics", "am", 5), ("multiple_choice", "fi", 2), ("multiple_choice", "am", 5)
    ]  # fmt: skip
    [quota, _] = quotas_of(sources, ("fi", "am"), 4, together=True)
    assert (quota.languages, quota.places) == (("fi", "am"), 4)
    texts = filter_sources([question(domain="translation")], USUAL, preferred="en", seed=0)
    assert [quota.languages for quota in quotas_of(texts, ("en", "fi"), 4, together=False)] == [("fi",)]


@pytest.mark.parametrize(
    ("languages", "places", "together", "clue"),
    [
        ((), 1, False, "translations.languages is empty: name each language once"),
        (("fi", "fi"), 1, False, "name each language once"),
        (("xx",), 1, False, "'xx'"),
        (("fi", "am"), {"fi": 1}, False, "translations.places has no number for am"),
        (("fi", "am"), {"fi": 1, "am": 2}, True, "all languages go together: give one"),
    ],
)
def test_quotas_that_cannot_be_are_refused(languages, places, together, clue):
    sources = filter_sources([question()], USUAL, preferred="en", seed=0)
    with pytest.raises(UserError, match=clue):
        quotas_of(sources, languages, places, together=together)


def test_sources_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="the question 1 of d is of the domain 'maths': give it one of mathematics,"):
        filter_sources([question(domain="maths")], USUAL, preferred="en", seed=0)
    with pytest.raises(UserError, match="removed all 1, the first as too little natural language"):
        filter_sources([question("1 + 1")], USUAL, preferred="en", seed=0)


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_places_are_filled_the_same_way_whatever_comes_first(good, places, attempts, width, random):
    async def attempt(item):
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        return good[item]

    def filled(width):
        return asyncio.run(fill(range(len(good)), places, attempts, attempt, bool, width=width))

    tried = filled(width)
    assert tried == filled(1)
    used = [each.place for each in tried if each.result]
    assert len(set(used)) == len(used)  # an item is used once, a place filled once
    assert len(tried) <= len(good)
    by_place = collections.Counter(each.place for each in tried)
    assert all(count <= attempts for count in by_place.values())
    # Nothing is left empty while it has attempts left and there are items.
    empty = [place for place in range(places) if place not in used]
    assert not empty or len(tried) == len(good) or all(by_place[place] == attempts for place in empty)
