"""Languages, their tiers, and data in inverse proportion to their resources."""

import collections

import pytest

from lcrag.data.languages import LANGUAGES, LCRL_LANGUAGES, known_languages, language_of
from lcrag.data.questions import Question
from lcrag.data.tiers import (
    ALL_TIERS,
    HELD_OUT_TIERS,
    QUOTAS,
    TIERS,
    inverse_resource_rates,
    tier_of,
    tiered_questions,
    weighted_by_tier,
    with_tiers,
)
from lcrag.errors import UserError


def test_every_language_names_another_as_its_relative():
    for code, language in LANGUAGES.items():
        assert language.code == code
        assert language.relative in LANGUAGES
        assert language.relative not in (code, "en")
        assert language.example
        assert language.endonym
    assert {code for code, language in LANGUAGES.items() if not language.spaces} == {"ja", "zh", "th", "km"}


def test_an_unknown_code_is_named_with_the_known_ones():
    assert (language_of("fi").name, known_languages(None)) == ("Finnish", LCRL_LANGUAGES)
    for call in (lambda: language_of("xx"), lambda: known_languages(["en", "xx"])):
        with pytest.raises(UserError, match="'xx'"):
            call()


def asked(number, language, domain="mathematics", tier=None):
    extra = {"domain": domain} | ({"tier": tier} if tier else {})
    return Question(id=str(number), dataset="d", language=language, text="?", answers=("1",), extra=extra)


def test_the_paper_s_tiers():
    assert [len(languages) for languages in TIERS.values()] == [6, 12, 4, 2]
    assert [len(languages) for languages in HELD_OUT_TIERS.values()] == [3, 6]
    codes = [code for languages in ALL_TIERS.values() for code in languages]
    assert len(set(codes)) == 33
    assert set(codes) <= set(LANGUAGES)
    assert set(QUOTAS) == set(TIERS)
    assert [tier_of(code) for code in ("en", "ha", "tw", "qki", "ko", "mi")] == list(ALL_TIERS)
    with pytest.raises(UserError, match="no tier"):
        tier_of("fi")


def test_questions_know_their_domain_and_tier():
    (question,) = with_tiers([asked(1, "ha")])
    assert (question.domain, question.tier) == ("mathematics", "low")
    plain = Question(id="1", dataset="d", language="fi", text="?", answers=("1",))
    assert (plain.domain, plain.tier) == ("", "")
    assert with_tiers([plain], {"known": ("fi",)})[0].tier == "known"


def test_rates_are_the_weights_of_the_tiers():
    assert inverse_resource_rates(("en", "ha", "bm")) == {"en": 610, "ha": 4880, "bm": 3660}
    assert inverse_resource_rates(("fi", "en"), {"a": 1, "b": 2}, {"a": ("fi",), "b": ("en",)}) == {"fi": 1, "en": 2}
    with pytest.raises(UserError, match="no weight"):
        inverse_resource_rates(("ko",))


def test_a_table_in_inverse_proportion():
    table = with_tiers([asked(n, code) for n in range(400) for code in ("en", "fr", "ha", "bm")])
    kept = tiered_questions(table, weights=QUOTAS, seed=3)
    assert tiered_questions(table) == table
    counts = collections.Counter(question.language for question in kept)
    assert counts == {"en": 50, "fr": 50, "ha": 400, "bm": 300}
    assert kept == [question for question in table if question in kept] == weighted_by_tier(table, seed=3)
    ids = {code: {question.id for question in kept if question.language == code} for code in counts}
    assert ids["en"] == ids["fr"] < ids["bm"] < ids["ha"]
    assert weighted_by_tier(table, seed=4) != kept


def test_a_language_with_few_questions_makes_the_others_fewer_in_its_domain_alone():
    table = [asked(n, "en", tier="high") for n in range(100)] + [asked(n, "ha", tier="low") for n in range(80)]
    table += [asked(n, "en", "multiple_choice", "high") for n in range(30)]
    counts = collections.Counter((question.domain, question.language) for question in weighted_by_tier(table))
    assert counts == {("mathematics", "en"): 10, ("mathematics", "ha"): 80, ("multiple_choice", "en"): 30}
    assert weighted_by_tier([]) == []
    with pytest.raises(UserError, match="no weight"):
        weighted_by_tier([asked(1, "en")])
