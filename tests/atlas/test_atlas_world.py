"""The atlas: splits without leakage, parallel questions, collections that match their holdings."""

import collections
import subprocess
import sys
import unicodedata

import pytest

from lcrag.atlas import RELATIONS, SPLITS, Fact, TwoHop, build_world, render_passage
from lcrag.atlas.facts import CURRENCY_LIKE, KINDS, names_of
from lcrag.atlas.splits import mentioned_entities, subject_of
from lcrag.atlas.wording import UNKNOWN, WORDING, label
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.errors import UserError

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}


def facts_of(*splits: str) -> list[Fact]:
    return [fact for fact in WORLD.facts if WORLD.splits[fact.id] in splits]


def hops(item: Fact | TwoHop) -> tuple[Fact, ...]:
    return (item.first, item.second) if isinstance(item, TwoHop) else (item,)


def test_known_facts_are_right():
    expected = {
        "currency_code/FR": "EUR",
        "currency_year/FR": "1999",
        "former_currency_code/FR": "FRF",
        "alpha_3/DE": "DEU",
        "number/DE": "276",
        "main_language/HR": "hr",
        "country_of_language/fi": "FI",
        "time_zone/FI": "Europe/Helsinki",
    }
    assert {key: FACTS[key].value for key in expected} == expected
    assert FACTS["currency_code/HR"].outdated == "HRK"
    euro = names_of("currency")["EUR"]["en"]
    assert (euro.text, {"euros", "€"} <= set(euro.aliases)) == ("Euro", True)


def test_most_answers_are_copyable_and_there_are_enough():
    copyable = sum(RELATIONS[fact.relation].copyable for fact in WORLD.facts) / len(WORLD.facts)
    assert 0.65 <= copyable <= 0.85
    assert 2_400 <= len(WORLD.facts) <= 3_200
    one_hop = {split: len(facts_of(split)) for split in SPLITS}
    assert one_hop["held_out"] >= 150
    assert one_hop["unseen"] >= 100
    assert one_hop["train"] >= 1_800
    entities = collections.Counter(map(subject_of, WORLD.facts))
    assert sum(count >= 3 for count in entities.values()) / len(entities) > 0.95


def test_a_split_is_a_set_of_facts_and_training_touches_no_other():
    kept_back = {fact.id for fact in facts_of("validation", "held_out", "unseen")}
    asked = {question.id for question in WORLD.questions("train", ["en"], hops=1)}
    assert not asked & kept_back
    assert all(
        not {fact.id for fact in hops(item)} & kept_back for item in WORLD.two_hops if WORLD.splits[item.id] == "train"
    )
    assert not {pair.fact for pair in WORLD.training_pairs(["en", "fi"])} & kept_back


def test_no_training_text_is_a_held_out_question_or_passage():
    for language in ("en", "zh", "th"):
        asked = {question.text for question in WORLD.questions("train", [language])}
        told = {pair.passage for pair in WORLD.training_pairs([language])}
        for split in ("validation", "held_out", "unseen"):
            assert not asked & {question.text for question in WORLD.questions(split, [language])}
        held = (WORLD.passage(fact, language) for fact in facts_of("held_out", "unseen"))
        assert not told & {f"{passage.title} {passage.text}" for passage in held}


def test_a_held_out_entity_is_known_from_training_facts_and_an_unseen_one_is_not():
    known = collections.Counter(subject_of(fact) for fact in facts_of("train"))
    assert all(known[subject_of(fact)] >= 2 for fact in facts_of("held_out", "validation"))
    taught = set(known) | {entity for fact in facts_of("train") for entity in mentioned_entities(fact)}
    unseen = {subject_of(fact) for fact in facts_of("unseen")} - set(known)
    assert len(unseen) >= 30
    assert not unseen & taught


def test_a_two_hop_question_is_in_the_most_guarded_split_of_its_hops():
    for item in WORLD.two_hops:
        guard = max(SPLITS.index(WORLD.splits[fact.id]) for fact in hops(item))
        assert SPLITS.index(WORLD.splits[item.id]) == guard or (
            guard == 0 and WORLD.splits[item.id] in ("validation", "held_out")
        )


@pytest.mark.parametrize("split", SPLITS[1:])
def test_questions_are_parallel(split):
    questions = WORLD.questions(split)
    assert len({(question.id, question.language) for question in questions}) == len(questions)
    for start in range(0, len(questions), len(LCRL_LANGUAGES)):
        versions = questions[start : start + len(LCRL_LANGUAGES)]
        assert len({question.coupling for question in versions}) == 1
        assert tuple(question.language for question in versions) == LCRL_LANGUAGES
        assert len({question.extra["kind"] for question in versions}) == 1
        if versions[0].extra["copyable"]:
            assert len({question.answers for question in versions}) == 1


@pytest.mark.parametrize("language", LCRL_LANGUAGES)
def test_a_native_fact_is_in_the_native_passage_and_only_there(language):
    passages = {passage.id: passage for passage in WORLD.passages(language)}
    for question in WORLD.questions("held_out", [language], hops=1) + WORLD.questions("unseen", [language], hops=1):
        passage = passages.get(f"{language}/{question.id}")
        tells = passage is not None and passage.text.endswith(f": {question.answers[0]}")
        assert tells == question.extra["native_holds"]
        assert passage is None or passage.title == question.extra["entity"]


def test_coverage_and_outdated_shares_are_near_nominal():
    for language in LCRL_LANGUAGES:
        share = len(WORLD.passages(language)) / len(WORLD.facts)
        assert abs(share - (0.8 if language == "en" else 0.55)) < 0.04
    held = [
        (fact.id in WORLD.holdings.outdated[language])
        for fact in WORLD.facts
        if fact.relation in CURRENCY_LIKE
        for language in LCRL_LANGUAGES
        if fact.id in WORLD.holdings.outdated[language] | WORLD.holdings.current[language]
    ]
    assert abs(sum(held) / len(held) - 0.12) < 0.03


def test_an_outdated_passage_gives_the_former_value():
    fact = FACTS["currency_code/HR"]
    language = next(code for code in LCRL_LANGUAGES if fact.id in WORLD.holdings.outdated[code])
    passage = next(row for row in WORLD.passages(language) if row.id == f"{language}/{fact.id}")
    assert passage.text.endswith(": HRK")
    assert not WORLD.question(fact, language).extra["native_holds"]


def test_questions_can_be_chosen_by_language_hops_and_kind_of_answer():
    chosen = WORLD.questions("held_out", ["fi", "th"], hops=2, copyable=True)
    assert chosen
    assert {question.language for question in chosen} == {"fi", "th"}
    assert all(question.extra["hops"] == 2 and question.extra["copyable"] for question in chosen)
    parts = [len(WORLD.questions("unseen", ["en"], hops=n, copyable=c)) for n in (1, 2) for c in (True, False)]
    assert sum(parts) == len(WORLD.questions("unseen", ["en"]))


def test_golden_plans_chain():
    for question in WORLD.questions("train", ["en", "ja"], hops=2):
        plan, answers = question.extra["plan"], question.extra["sub_answers"]
        assert (plan["Q1"][1], plan["Q2"][1]) == ("#1", "#2")
        assert question.extra["entity"] in plan["Q1"][0]
        assert "#1" in plan["Q2"][0]
        assert answers["#2"] == list(question.answers)


def test_wording_is_complete_and_labels_tell_relations_apart():
    keys = {*RELATIONS, *(item.key for item in WORLD.two_hops)}
    assert set(WORDING) == set(UNKNOWN) == set(LCRL_LANGUAGES)
    for language, wording in WORDING.items():
        assert set(wording) == keys
        for kind in KINDS:
            labels = [label(language, key) for key, relation in RELATIONS.items() if relation.subject == kind]
            assert len(set(labels)) == len(labels)
            assert ":" not in "".join(labels)
        for _, question in wording.values():
            before, after = question.split("{name}")
            assert before.endswith(" ")
            assert not after or not unicodedata.category(after[0]).startswith("L")


def test_names_are_unique_in_every_language():
    for kind in KINDS:
        for language in LCRL_LANGUAGES:
            names = [row[language].text for row in names_of(kind).values()]
            assert len({name.casefold() for name in names}) == len(names)
            assert all(name == " ".join(name.split()) and ":" not in name for name in names)


def test_training_pairs_are_native_and_across_languages():
    pairs = WORLD.training_pairs(LCRL_TRAINING)
    counts = collections.Counter(pair.query_language == pair.passage_language for pair in pairs)
    assert min(counts.values()) > 10_000
    assert {pair.query_language for pair in pairs} == set(LCRL_TRAINING)
    names = [pair for pair in pairs if pair.fact.startswith("name/")]
    assert names
    assert all(pair.query_language != pair.passage_language for pair in names)


def test_a_counterfactual_passage_differs_in_its_value_alone():
    fact = FACTS["currency_code/FR"]
    passage = WORLD.passage(fact, "en", "JPY")
    assert render_passage(passage) == "France: currency code: JPY"
    assert "JPY" in WORLD.known_values("currency_code", "en")


def test_the_world_is_the_same_in_another_process_and_another_with_another_seed():
    code = "from lcrag.atlas import build_world; print(build_world(seed=0).fingerprint())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == WORLD.fingerprint()
    assert build_world(seed=1).splits != WORLD.splits


@pytest.mark.parametrize("call", [lambda: WORLD.questions("test"), lambda: WORLD.questions("train", ["xx"])])
def test_an_unknown_split_or_language_is_one_clear_sentence(call):
    with pytest.raises(UserError, match="use one of (train|en) ") as caught:
        call()
    assert "\n" not in str(caught.value)
