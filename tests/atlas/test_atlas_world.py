"""The atlas: facts as CLDR has them, splits without leakage, parallel questions, wording, what collections hold."""

import collections
import dataclasses
import statistics

import pytest

from lcrag.atlas import COMPOSITIONS, RELATIONS, SPLITS, Fact, build_world, render_passage
from lcrag.atlas.encoder import training_text
from lcrag.atlas.facts import section_of, subject_of
from lcrag.atlas.oracle import LAST_STALE_YEAR, read_texts
from lcrag.atlas.world import PRESENT_YEARS, STALE_SHARE, STALE_YEARS, mentioned_entities
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.errors import UserError

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
HOPS = (1, 2, 3, 4)


def facts_of(*splits: str) -> list[Fact]:
    return [fact for fact in WORLD.facts if WORLD.splits[fact.id] in splits]


def unseen_entities() -> set[tuple[str, str]]:
    return {subject_of(fact) for fact in facts_of("unseen")} - {subject_of(fact) for fact in facts_of("train")}


@pytest.mark.parametrize("language", ["en", "ar", "zh"])
def test_training_texts_state_training_facts_only(language):
    lines = [line.strip() for line in training_text(WORLD, language)]
    asked = {question.text for split in SPLITS[1:] for question in WORLD.questions(split, [language], HOPS)}
    assert not asked & set(lines)
    readings = read_texts(f"<information>\n {line}\n</information>" for line in lines if ": " in line)
    told = {f"{reading.relation}/{reading.subject}" for reading in readings if language in reading.languages}
    assert told == {fact.id for fact in facts_of("train")}
    titles = {line.partition(":")[0] for line in lines}
    named = {subject_of(fact) for fact in facts_of("train")}  # Tuvalu is a country and, in English, a language
    unseen, known = ({WORLD.name(entity, language).text for entity in some} for some in (unseen_entities(), named))
    assert not titles & (unseen - known)


def test_a_held_out_entity_is_known_from_training_facts_and_an_unseen_one_is_not():
    known = collections.Counter(subject_of(fact) for fact in facts_of("train"))
    assert all(known[subject_of(fact)] >= 2 for fact in facts_of("held_out", "validation"))
    taught = set(known) | {entity for fact in facts_of("train") for entity in mentioned_entities(fact)}
    assert len(unseen_entities()) >= 30
    assert not unseen_entities() & taught


def test_a_chain_is_in_the_most_guarded_split_of_its_facts():
    for chain in WORLD.chains:
        guard = max(SPLITS.index(WORLD.splits[fact.id]) for fact in chain.facts)
        assert WORLD.splits[chain.id] in ((SPLITS[guard],) if guard else ("train", "validation", "held_out"))


@pytest.mark.parametrize("split", SPLITS[1:])
def test_questions_are_parallel(split):
    questions = WORLD.questions(split, hops=HOPS)
    assert len({(question.id, question.language) for question in questions}) == len(questions)
    for start in range(0, len(questions), len(LCRL_LANGUAGES)):
        versions = questions[start : start + len(LCRL_LANGUAGES)]
        assert len({question.coupling for question in versions}) == 1
        assert tuple(question.language for question in versions) == LCRL_LANGUAGES
        assert len({question.extra["kind"] for question in versions}) == 1
        if versions[0].extra["copyable"]:
            assert len({question.answers for question in versions}) == 1


def test_questions_can_be_chosen_by_language_hops_and_kind_of_answer():
    chosen = WORLD.questions("held_out", ["fi", "th"], hops=(2,), copyable=True)
    assert chosen
    assert {question.language for question in chosen} == {"fi", "th"}
    assert {(question.extra["hops"], question.extra["copyable"]) for question in chosen} == {(2, True)}
    parts = [len(WORLD.questions("unseen", ["en"], hops=(n,), copyable=c)) for n in HOPS for c in (True, False)]
    assert sum(parts) == len(WORLD.questions("unseen", ["en"], HOPS))


def test_chains_lead_from_value_to_subject_those_of_four_through_four_entities_and_not_through_english():
    for chain in WORLD.chains:
        assert chain.relations in COMPOSITIONS
        for fact, later in zip(chain.facts, chain.facts[1:], strict=False):
            assert (RELATIONS[fact.relation].value, fact.value) == subject_of(later)
    chains = [chain for chain in WORLD.chains if len(chain.facts) == 4]
    assert all(len(set(map(subject_of, chain.facts))) == 4 for chain in chains)
    assert not any(subject_of(fact) == ("language", "en") for chain in chains for fact in chain.facts)
    last, count = collections.Counter(chain.last.value for chain in chains).most_common(1)[0]
    assert count / len(chains) < 0.25, f"{last} is too good a guess"


def test_a_counterfactual_passage_differs_in_its_value_alone():
    fact = FACTS["currency/FI"]
    language = next(code for code in LCRL_LANGUAGES if WORLD.holds(fact, code))
    true = render_passage(WORLD.passage(section_of(fact), language))
    told = Fact(fact.relation, fact.subject, "JPY")
    (now,), (then,) = ([WORLD.name(("currency", code), language).text] for code in ("EUR", "JPY"))
    assert render_passage(WORLD.passage(section_of(fact), language, told)) == true.replace(now, then, 1) != true


def test_the_world_is_the_one_that_the_shipped_weights_know_and_another_with_another_seed():
    """All questions, splits and passages, so facts, names and wording; a change of them asks for new weights."""
    assert WORLD.fingerprint() == "d2ef8691f417ca0a"
    assert build_world(seed=1).splits != WORLD.splits


def entries(fact):
    return {code: WORLD.holdings[code][fact.id] for code in LCRL_LANGUAGES if fact.id in WORLD.holdings[code]}


def test_homes_hold_their_facts_right_and_all_others_share_one_value_whose_year_tells_whether_it_is_stale():
    values, stale = collections.defaultdict(set), 0
    for fact in WORLD.facts:
        values[fact.relation].add(fact.value)
    for fact in WORLD.facts:
        held, home = entries(fact), WORLD.homes[subject_of(fact)]
        assert held, fact
        assert home not in held or held[home].value == fact.value
        elsewhere = {entry.value for code, entry in held.items() if code != home}
        assert len(elsewhere) <= 1
        stale += bool(elsewhere - {fact.value})
        for entry in held.values():
            if entry.value != fact.value:
                assert entry.value in ({fact.former} if fact.former else values[fact.relation])
                assert STALE_YEARS[0] <= entry.year < STALE_YEARS[1] <= LAST_STALE_YEAR
            elif entry.year is not None:
                assert LAST_STALE_YEAR < PRESENT_YEARS[0] <= entry.year < PRESENT_YEARS[1]
    assert stale / len(WORLD.facts) == pytest.approx(STALE_SHARE, abs=0.04)


@pytest.mark.parametrize("language", ["fi", "ja", "ar", "th"])
def test_passages_say_what_the_collection_holds(language):
    """Parsed by the oracle's reader, which knows labels and names, but no facts."""
    lines = {passage.id: f" {passage.title}: {passage.text}" for passage in WORLD.passages(language)}
    readings = read_texts(f"<information>\n{line}\n</information>" for line in lines.values())
    said = {(f"{row.relation}/{row.subject}", row.value, row.year) for row in readings if language in row.languages}
    held = set()
    for id, entry in WORLD.holdings[language].items():
        value, *_ = WORLD.values(dataclasses.replace(FACTS[id], value=entry.value), language)
        held.add((id, value, entry.year))
    assert said == held
    assert {f"{language}/{section_of(FACTS[id])}" for id in WORLD.holdings[language]} == set(lines)
    assert statistics.mean(line.count("; ") + 1 for line in lines.values()) > 1.5
    for question in WORLD.questions("held_out", [language]) + WORLD.questions("unseen", [language]):
        entry = WORLD.holdings[language].get(question.id)
        assert question.extra["native_holds"] == (entry is not None and entry.value == FACTS[question.id].value)


def test_a_complete_collection_holds_every_fact_right_and_the_others_what_they_held():
    complete = build_world(seed=0, complete=("en",))
    assert all(complete.holds(fact, "en") for fact in complete.facts)
    assert all(complete.holdings[code] == WORLD.holdings[code] for code in LCRL_LANGUAGES if code != "en")
    assert complete.splits == WORLD.splits


def test_an_unknown_split_or_language_is_refused():
    calls = (lambda: WORLD.questions("test"), lambda: WORLD.questions("train", ["xx"]), lambda: build_world(0, ("xx",)))
    for call in calls:
        with pytest.raises(UserError):
            call()
