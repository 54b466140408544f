"""The table of languages."""

import pytest

from lcrag.data.languages import LANGUAGES, LCRL_LANGUAGES, LCRL_TRAINING, LCRL_ZERO_SHOT, known_languages, language_of
from lcrag.errors import UserError


def test_the_lcrl_languages_are_the_paper_s():
    assert len(LCRL_LANGUAGES) == 13 and not set(LCRL_TRAINING) & set(LCRL_ZERO_SHOT)
    assert set(LCRL_LANGUAGES) <= set(LANGUAGES)


def test_every_language_names_another_as_its_relative():
    for code, language in LANGUAGES.items():
        assert language.code == code and language.relative in LANGUAGES
        assert language.relative not in (code, "en") and language.example and language.endonym
    assert {code for code, language in LANGUAGES.items() if not language.spaces} == {"ja", "zh", "th", "km"}


def test_an_unknown_code_is_named_with_the_known_ones():
    assert language_of("fi").name == "Finnish" and known_languages(None) == LCRL_LANGUAGES
    for call in (lambda: language_of("xx"), lambda: known_languages(["en", "xx"])):
        with pytest.raises(UserError, match="unknown language 'xx': use one of en "):
            call()
