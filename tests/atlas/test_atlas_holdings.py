"""What the collections hold: homes are right, all others share one stale value, and the year of an entry tells."""

import statistics

import pytest
from babel.core import get_global

from lcrag.atlas import build_world
from lcrag.atlas.facts import RELATIONS, section_of, subject_of
from lcrag.atlas.holdings import (
    ENGLISH_SHARE,
    FOREIGN_SHARE,
    HOME_SHARE,
    PRESENT_YEARS,
    STALE_SHARE,
    STALE_YEARS,
    STATED_SHARE,
    country_homes,
)
from lcrag.atlas.oracle import LAST_STALE_YEAR, Oracle
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.errors import UserError

WORLD = build_world(seed=0)


def entries(fact):
    return {code: WORLD.holdings[code][fact.id] for code in LCRL_LANGUAGES if fact.id in WORLD.holdings[code]}


def test_homes_are_where_the_language_is_spoken():
    homes = country_homes()
    expected = {"FI": "fi", "AT": "de", "BR": "pt", "MX": "es", "TW": "zh", "KP": "ko", "EG": "ar", "BY": "ru"}
    assert {country: homes[country] for country in expected} == expected
    for country, home in homes.items():
        spoken = get_global("territory_languages").get(country, {})
        if any(code in LCRL_LANGUAGES for code in spoken):
            assert any(code.split("_")[0] == home for code in spoken), (country, home)
    assert {home for home in homes.values()} == set(LCRL_LANGUAGES)


def test_the_home_of_a_currency_is_its_issuer_s_and_that_of_a_language_its_own():
    assert WORLD.homes["currency", "FIM"] == "fi"
    assert WORLD.homes["currency", "JPY"] == "ja"
    assert WORLD.homes["language", "th"] == "th"


def test_homes_hold_their_facts_right():
    for fact in WORLD.facts:
        held = entries(fact)
        home = WORLD.homes[subject_of(fact)]
        assert held, fact
        assert home not in held or held[home].value == fact.value


def test_all_other_collections_share_one_value():
    stale = 0
    for fact in WORLD.facts:
        home = WORLD.homes[subject_of(fact)]
        values = {entry.value for code, entry in entries(fact).items() if code != home}
        assert len(values) <= 1
        stale += bool(values - {fact.value})
    assert abs(stale / len(WORLD.facts) - STALE_SHARE) < 0.04


def test_a_stale_value_is_the_former_one_or_another_fact_s():
    values = {}
    for fact in WORLD.facts:
        values.setdefault(fact.relation, set()).add(fact.value)
    for fact in WORLD.facts:
        for entry in entries(fact).values():
            if entry.value != fact.value:
                assert entry.value in ({fact.former} if fact.former else values[fact.relation])


def test_the_year_of_an_entry_tells_whether_it_is_stale():
    for fact in WORLD.facts:
        for entry in entries(fact).values():
            if entry.value != fact.value:
                assert STALE_YEARS[0] <= entry.year < STALE_YEARS[1] <= LAST_STALE_YEAR
            elif entry.year is not None:
                assert LAST_STALE_YEAR < PRESENT_YEARS[0] <= entry.year < PRESENT_YEARS[1]


@pytest.mark.parametrize(("where", "share"), [("home", HOME_SHARE), ("en", ENGLISH_SHARE), ("abroad", FOREIGN_SHARE)])
def test_collections_hold_their_shares(where, share):
    def holds(fact, language):
        home = WORLD.homes[subject_of(fact)]
        return where == ("home" if language == home else "en" if language == "en" else "abroad")

    held = [
        fact.id in WORLD.holdings[language]
        for fact in WORLD.facts
        for language in LCRL_LANGUAGES
        if holds(fact, language)
    ]
    assert abs(statistics.mean(held) - share * STATED_SHARE) < 0.025


@pytest.mark.parametrize("language", LCRL_LANGUAGES)
def test_passages_say_what_the_collection_holds(language):
    """Parsed by the oracle, which knows labels and names, but no facts."""
    lines = {passage.id: f" {passage.title}: {passage.text}" for passage in WORLD.passages(language)}
    readings = Oracle().readings(f"<information>\n{line}\n</information>" for line in lines.values())
    said = {
        (f"{each.relation}/{each.subject}", each.value, each.year) for each in readings if language in each.languages
    }
    facts = {fact.id: fact for fact in WORLD.facts}
    held = {
        (id, WORLD.values(type(facts[id])(facts[id].relation, facts[id].subject, entry.value), language)[0], entry.year)
        for id, entry in WORLD.holdings[language].items()
    }
    assert said == held
    assert {f"{language}/{section_of(facts[id])}" for id in WORLD.holdings[language]} == set(lines)


def test_a_complete_collection_holds_every_fact_right_and_the_others_what_they_held():
    complete = build_world(seed=0, complete=("en",))
    assert all(complete.holds(fact, "en") for fact in complete.facts)
    others = [code for code in LCRL_LANGUAGES if code != "en"]
    assert all(complete.holdings[code] == WORLD.holdings[code] for code in others)
    assert complete.splits == WORLD.splits
    with pytest.raises(UserError, match="no language 'xx'"):
        build_world(seed=0, complete=("xx",))


def test_passages_have_several_sentences():
    counts = [passage.text.count("; ") + 1 for code in LCRL_LANGUAGES for passage in WORLD.passages(code)]
    most = max(sum(each.section == relation.section for each in RELATIONS.values()) for relation in RELATIONS.values())
    assert max(counts) <= most
    assert statistics.mean(counts) > 1.8
