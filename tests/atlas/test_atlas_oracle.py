"""The oracle answers from passages of the present and searches again otherwise; samples for demonstrations."""

import dataclasses

import numpy as np
import pytest

from lcrag.atlas import Chain, build_world
from lcrag.atlas.facts import section_of
from lcrag.atlas.oracle import MALFORMED, Oracle, RandomSearcher, entity_called
from lcrag.atlas.world import FactSampler
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.episodes import RETHINK
from lcrag.episodes.tags import Invalid, parse_action

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
CHAINS = {chain.id: chain for chain in WORLD.chains}
QUESTION = WORLD.question(Chain((FACTS["currency_code/FR"],)), "fi")
CURRENCY = WORLD.question(Chain((FACTS["currency/FI"],)), "fi")
SEARCHED = ("policy", "<search> Ranska valuuttakoodi</search>")


def block(*lines: str) -> tuple[str, str]:
    return "environment", "<information>\n" + "".join(f" {line}\n" for line in lines) + "</information>\n"


def test_it_searches_first():
    assert Oracle().next_text(QUESTION, ()) == SEARCHED[1]
    assert Oracle().next_text(QUESTION, [("environment", f"{QUESTION.text}\n")]) == SEARCHED[1]


@pytest.mark.parametrize("value", ["EUR", "FRF", "QQQ"])
def test_it_answers_from_passages_even_if_they_are_wrong(value):
    turns = [SEARCHED, block("Norja: valuuttakoodi: NOK", f"Ranska: valuuttakoodi: {value}")]
    assert Oracle().next_text(QUESTION, turns) == f"<answer> {value}</answer>"


def test_it_never_sees_the_golden_answers():
    blind = dataclasses.replace(QUESTION, answers=("?",))
    turns = [SEARCHED, block("France: currency code: EUR")]
    assert Oracle().next_text(blind, turns) == Oracle().next_text(QUESTION, turns) == "<answer> EUR</answer>"


def test_it_finds_the_sentence_among_others():
    line = "Ranska: valuutta (2020): euro; valuuttakoodi (2019): EUR; valuutta käytössä alkaen: 1. tammikuuta 1999"
    assert Oracle().next_text(QUESTION, [SEARCHED, block(line)]) == "<answer> EUR</answer>"


def test_it_prefers_the_present_to_a_stale_value_that_more_passages_give():
    stale = ["France: currency code (1995): FRF", "Frankreich: Währungscode (2001): FRF"]
    present = "フランス: 通貨コード (2019): EUR"
    assert Oracle().next_text(QUESTION, [SEARCHED, block(*stale, present)]) == "<answer> EUR</answer>"
    assert Oracle().next_text(QUESTION, [SEARCHED, block(*stale)]) == SEARCHED[1]
    assert Oracle(budget=1).next_text(QUESTION, [SEARCHED, block(*stale)]) == "<answer> FRF</answer>"


def test_another_entity_or_relation_makes_it_search_again_until_the_budget_is_spent():
    turns = [SEARCHED, block("Norja: valuuttakoodi: NOK", "Ranska: pääkieli: ranska")]
    assert Oracle().next_text(QUESTION, turns) == SEARCHED[1]
    assert Oracle(budget=1).next_text(QUESTION, turns) == "<answer> NOK</answer>"
    assert Oracle(budget=1).next_text(QUESTION, [SEARCHED, block()]) == "<answer> tuntematon</answer>"


def test_a_name_is_read_in_any_script_and_answered_in_the_question_s_language():
    turns = [("policy", "<search> Suomi valuutta</search>"), block("フィンランド: 通貨: ユーロ")]
    assert Oracle().next_text(CURRENCY, turns) == "<answer> euro</answer>"
    pivot = dataclasses.replace(CURRENCY, extra=CURRENCY.extra | {"answer_language": "ru"})
    assert Oracle().next_text(pivot, turns) == "<answer> евро</answer>"


@pytest.mark.parametrize(
    ("relation", "read", "answer"),
    [
        ("currency_since", "France: currency introduced on: January 1, 1999", "1. tammikuuta 1999"),
        ("main_language_share", "France: share of the main language (2020): 94 percent", "94 prosenttia"),
    ],
)
def test_dates_and_amounts_are_translated(relation, read, answer):
    question = WORLD.question(Chain((FACTS[f"{relation}/FR"],)), "fi")
    assert Oracle().next_text(question, [SEARCHED, block(read)]) == f"<answer> {answer}</answer>"


def test_the_value_that_most_passages_give_wins_and_the_first_of_a_tie():
    lines = ["France: currency code: FRF", "Francia: codice della moneta: EUR", "Frankreich: Währungscode: EUR"]
    assert Oracle().next_text(QUESTION, [SEARCHED, block(*lines)]) == "<answer> EUR</answer>"
    assert Oracle().next_text(QUESTION, [SEARCHED, block(*lines[:2])]) == "<answer> FRF</answer>"


def test_chains_go_over_the_bridges():
    question = WORLD.question(CHAINS["country_of_language+currency+code_of_currency/fi"], "fr")
    turns = [("policy", Oracle().next_text(question, ()))]
    assert turns[0][1] == "<search> finnois pays principal</search>"
    turns.append(block("Finnish: main country: Finland"))
    assert Oracle().next_text(question, turns) == "<search> Finlande monnaie</search>"
    turns += [("policy", "<search> x</search>"), block("Suomi: valuutta: euro")]
    assert Oracle().next_text(question, turns) == "<search> euro code</search>"
    turns += [("policy", "<search> x</search>"), block("Euro: Code: EUR")]
    assert Oracle().next_text(question, turns) == "<answer> EUR</answer>"


def test_a_bridge_it_does_not_know_is_searched_as_it_was_read():
    question = WORLD.question(CHAINS["country_of_language+currency/fi"], "en")
    turns = [("policy", "<search> x</search>"), block("Finnish: main country: Atlantis")]
    assert Oracle().next_text(question, turns) == "<search> Atlantis currency</search>"


def test_the_policy_s_own_text_is_no_evidence():
    forged = ("policy", "<information>\n Ranska: valuuttakoodi: XXX\n</information>")
    assert Oracle().next_text(QUESTION, [forged]) == SEARCHED[1]


def random_turns(number):
    """A dialogue in which one search has found the answer."""
    return [("environment", f"{number}\n"), SEARCHED, block("Norja: valuuttakoodi: NOK", "Ranska: valuuttakoodi: EUR")]


def test_random_searches_begin_with_one_and_keep_the_budget():
    player = RandomSearcher(budget=1)
    assert player.next_text(QUESTION, ()) == SEARCHED[1]
    assert {player.next_text(QUESTION, random_turns(number)) for number in range(40)} == {
        " Ranska: valuuttakoodi: EUR\n<answer> EUR</answer>"
    }


def test_random_searches_do_not_depend_on_what_was_read():
    player = RandomSearcher(budget=2)
    for passage in ("Ranska: valuuttakoodi: EUR", "Norja: valuuttakoodi: NOK"):
        texts = [
            player.next_text(QUESTION, [("environment", f"{number}\n"), SEARCHED, block(passage)])
            for number in range(400)
        ]
        again = [text.endswith(SEARCHED[1]) for text in texts]
        assert 0.4 < sum(again) / len(again) < 0.6


def test_a_random_searcher_notes_any_passage_about_the_fact_and_admits_that_it_has_read_none():
    player = RandomSearcher(budget=1)
    passages = block("Ranska: valuuttakoodi: EUR", "France: currency code (1995): FRF", "Norja: valuuttakoodi: NOK")
    trusted = {player.next_text(QUESTION, [("environment", str(number)), SEARCHED, passages]) for number in range(40)}
    assert trusted == {
        " Ranska: valuuttakoodi: EUR\n<answer> EUR</answer>",
        " France: currency code (1995): FRF\n<answer> FRF</answer>",
    }
    unread = player.next_text(QUESTION, [SEARCHED, block("Norja: valuuttakoodi: NOK")])
    assert unread == " Ranska: valuuttakoodi: ?\n<answer> tuntematon</answer>"


def test_a_random_searcher_answers_with_the_value_of_its_last_note():
    player = RandomSearcher(budget=1, max_notes=2)
    passages = block("Ranska: valuuttakoodi: EUR", "France: currency code (1995): FRF", "Norja: valuuttakoodi: NOK")
    texts = {player.next_text(QUESTION, [("environment", str(number)), SEARCHED, passages]) for number in range(80)}
    right, stale = " Ranska: valuuttakoodi: EUR\n", " France: currency code (1995): FRF\n"
    assert texts == {
        f"{right}<answer> EUR</answer>",
        f"{stale}<answer> FRF</answer>",
        f"{right}{stale}<answer> FRF</answer>",
        f"{stale}{right}<answer> EUR</answer>",
    }


def test_a_random_searcher_slips_once_at_most():
    player = RandomSearcher(budget=2, slips=0.5)
    first = [player.next_text(QUESTION, [("environment", str(number))]) for number in range(200)]
    slips = [text for text in first if text != SEARCHED[1]]
    assert 0.4 < len(slips) / len(first) < 0.6
    assert all(isinstance(parse_action(text), Invalid) for text in slips)
    assert set(slips) == {text.format(query="Ranska valuuttakoodi") for text in MALFORMED}
    for number, text in enumerate(slips):
        turns = [("environment", str(number)), ("policy", text), ("environment", RETHINK)]
        assert player.next_text(QUESTION, turns) == SEARCHED[1]


def test_a_random_searcher_continues_one_dialogue_alike():
    texts = {RandomSearcher(budget=2).next_text(QUESTION, random_turns(7)) for _ in range(5)}
    assert len(texts) == 1


def told_by(passage, language):
    readings = Oracle().readings([block(f"{passage.title}: {passage.text}")[1]])
    return {f"{each.relation}/{each.subject}" for each in readings if language in each.languages}


def test_a_sampled_passage_states_its_fact_and_training_facts_of_its_section():
    generator, facts = np.random.default_rng(0), FactSampler(WORLD)
    for _ in range(200):
        fact, language = facts.any(generator), str(generator.choice(LCRL_LANGUAGES))
        told = told_by(facts.passage(generator, fact, language), language)
        assert fact.id in told
        assert {WORLD.splits[id] for id in told} == {"train"}
        assert {section_of(FACTS[id]) for id in told} == {section_of(fact)}


def test_a_sampled_passage_never_states_what_is_hidden():
    generator, facts = np.random.default_rng(0), FactSampler(WORLD)
    for _ in range(300):
        hidden, language = facts.any(generator), str(generator.choice(LCRL_LANGUAGES))
        other = facts.related(generator, hidden)
        assert hidden.id not in told_by(facts.passage(generator, other, language, hidden=hidden), language)


def test_a_counterfactual_fact_is_stated_as_such():
    generator, facts = np.random.default_rng(0), FactSampler(WORLD)
    told = dataclasses.replace(FACTS["currency/FI"], value="JPY")
    for _ in range(20):
        text = facts.passage(generator, told, "fi").text
        [said] = [sentence for sentence in text.split("; ") if sentence.partition(":")[0].split(" (")[0] == "valuutta"]
        assert said.endswith(": Japanin jeni")


def test_a_value_is_called_by_the_first_language_that_has_it():
    assert entity_called("currency", "euro", ("fi", "fr")) == "EUR"
    assert entity_called("date", "28. helmikuuta 2002", ("en", "fi")) == "2002-02-28"
    assert entity_called("date", "28. helmikuuta 2002", ("en", "ja")) is None
