"""The retrieval options of figure 3: which collections a question is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.episodes import routing as choices


def asked(language, name="q"):
    return Question(id=name, dataset="atlas", language=language, text="?", answers=("a",))


@pytest.mark.parametrize(
    ("choice", "language", "expected"),
    [
        (choices.every_collection, "fi", LCRL_LANGUAGES),
        (choices.native_collection, "fi", ("fi",)),
        (choices.english_collection, "fi", ("en",)),
        (choices.native_and_english, "fi", ("fi", "en")),
        (choices.native_and_english, "en", ("en",)),
    ],
)
def test_choices_by_hand(choice, language, expected):
    assert tuple(choice(asked(language), LCRL_LANGUAGES)) == expected


def test_a_list_is_searched_in_its_order_behind_the_native_collection():
    chosen = ("th", "en", "sw", "fr")
    assert choices.chosen_collections(asked("fr"), LCRL_LANGUAGES, chosen) == ("fr", "th", "en")
    assert choices.chosen_collections(asked("ja"), ("fr",), chosen) == ("ja", "fr")


def test_a_third_high_resource_language_is_drawn_by_the_question():
    drawn = {choices.native_english_and_high(asked("fi", str(number)), LCRL_LANGUAGES) for number in range(100)}
    assert all(len(chosen) == 3 and chosen[:2] == ("fi", "en") for chosen in drawn)
    assert {chosen[2] for chosen in drawn} == set(choices.HIGH_RESOURCE)
    again = {choices.native_english_and_high(asked("fi", str(number)), LCRL_LANGUAGES) for number in range(100)}
    assert drawn == again
    assert choices.native_english_and_high(asked("fi"), ("fi", "en")) == ("fi", "en")


@given(
    st.sampled_from(LCRL_LANGUAGES),
    st.lists(st.sampled_from(LCRL_LANGUAGES), unique=True, min_size=1),
    st.integers(1, 13),
)
def test_more_collections_contain_fewer_and_the_native_one_is_first(language, languages, count):
    chosen = choices.largest_collections(asked(language), languages, count)
    assert chosen[0] == language and len(set(chosen)) == len(chosen) <= count
    assert set(chosen[1:]) <= set(languages)
    assert choices.largest_collections(asked(language), languages, count + 1)[: len(chosen)] == chosen
    assert len(choices.largest_collections(asked(language), LCRL_LANGUAGES, count)) == count
