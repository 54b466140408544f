"""The questions an experiment asks for are those it gets."""

import collections
import functools

import pytest

from lcrag.atlas.independent_facts import atlas_comparisons, atlas_conjunctions
from lcrag.atlas.world import atlas_questions
from lcrag.data.languages import LCRL_LANGUAGES

INDEPENDENT = (atlas_comparisons, atlas_conjunctions)


def test_limits_keep_every_language_of_a_question_together():
    questions = atlas_questions("held_out", limit=12)
    versions = collections.Counter(question.id for question in questions)
    assert len(versions) == 12
    assert set(versions.values()) == {len(LCRL_LANGUAGES)}
    assert [question.language for question in questions[:13]] == list(LCRL_LANGUAGES)
    assert len({question.extra["kind"] for question in questions}) > 4  # spread over the split, not its beginning


def test_copyable_answers_and_translated_ones_are_all_there_is():
    everything, copyable, translated = (
        {question.id for question in atlas_questions("held_out", ("en",), copyable=kept)}
        for kept in (None, True, False)
    )
    assert copyable | translated == everything
    assert not copyable & translated
    assert len(copyable) < len(translated)


@pytest.mark.parametrize("questions", [functools.partial(atlas_questions, hops=(2, 3), copyable=False), *INDEPENDENT])
def test_limits_beyond_what_there_is_repeat_nothing(questions):
    everything = questions("validation", ("en",))
    assert questions("validation", ("en",), limit=len(everything) + 9) == everything
    assert len({each.id for each in questions("validation", ("en",), limit=20)}) == 20
