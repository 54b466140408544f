"""The retrieval options of figure 3: which collections a question is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.questions import LCRL_LANGUAGES, Question
from lcrag.episodes import routing


def asked(language, name="q"):
    return Question(id=name, dataset="atlas", language=language, text="?", answers=("a",))


@pytest.mark.parametrize(
    ("choice", "language", "expected"),
    [
        (routing.every_collection, "fi", LCRL_LANGUAGES),
        (routing.native_collection, "fi", ("fi",)),
        (routing.english_collection, "fi", ("en",)),
        (routing.native_and_english, "fi", ("fi", "en")),
        (routing.native_and_english, "en", ("en",)),
    ],
)
def test_choices_by_hand(choice, language, expected):
    assert tuple(choice(asked(language), LCRL_LANGUAGES)) == expected
    chosen = ("th", "en", "sw", "fr")  # searched in their order after the native collection
    assert routing.chosen_collections(asked("fr"), LCRL_LANGUAGES, chosen=chosen) == ("fr", "th", "en")
    assert routing.chosen_collections(asked("ja"), ("fr",), chosen=chosen) == ("ja", "fr")


def test_a_third_high_resource_language_is_drawn_by_the_question():
    questions = [asked("fi", str(number)) for number in range(100)]
    drawn = [routing.native_english_and_high(each, LCRL_LANGUAGES) for each in questions]
    assert {chosen[:2] for chosen in drawn} == {("fi", "en")}
    assert {chosen[2:] for chosen in drawn} == {(code,) for code in routing.HIGH_RESOURCE}
    assert drawn == [routing.native_english_and_high(each, LCRL_LANGUAGES) for each in questions]
    assert routing.native_english_and_high(asked("fi"), ("fi", "en")) == ("fi", "en")


@given(
    st.sampled_from(LCRL_LANGUAGES),
    st.lists(st.sampled_from(LCRL_LANGUAGES), unique=True, min_size=1),
    st.integers(1, 13),
)
def test_more_collections_contain_fewer_and_the_native_one_is_first(language, languages, count):
    chosen = routing.largest_collections(asked(language), languages, count=count)
    assert chosen[0] == language
    assert len(set(chosen)) == len(chosen) <= count
    assert set(chosen[1:]) <= set(languages)
    assert routing.largest_collections(asked(language), languages, count=count + 1)[: len(chosen)] == chosen
    assert len(routing.largest_collections(asked(language), LCRL_LANGUAGES, count=count)) == count
