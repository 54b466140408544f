"""The oracle answers from what it read and searches again otherwise."""

import dataclasses

import pytest

from lcrag.atlas import build_world
from lcrag.atlas.oracle import SEARCH_R1_LINE, Oracle, RandomSearcher

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
QUESTION = WORLD.question(FACTS["currency_code/FR"], "fi")
CURRENCY = WORLD.question(FACTS["currency/HR"], "fi")
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


def test_another_entity_or_relation_makes_it_search_again_until_the_budget_is_spent():
    turns = [SEARCHED, block("Norja: valuuttakoodi: NOK", "Ranska: pääkieli: ranska")]
    assert Oracle().next_text(QUESTION, turns) == SEARCHED[1]
    assert Oracle(budget=1).next_text(QUESTION, turns) == "<answer> NOK</answer>"
    assert Oracle(budget=1).next_text(QUESTION, [SEARCHED, block()]) == "<answer> tuntematon</answer>"


def test_a_name_is_read_in_any_script_and_answered_in_the_question_s_language():
    turns = [("policy", "<search> Kroatia valuutta</search>"), block("クロアチア: 通貨: ユーロ")]
    assert Oracle().next_text(CURRENCY, turns) == "<answer> euro</answer>"
    assert Oracle(translate=False).next_text(CURRENCY, turns) == "<answer> ユーロ</answer>"
    pivot = dataclasses.replace(CURRENCY, extra=CURRENCY.extra | {"answer_language": "ru"})
    assert Oracle().next_text(pivot, turns) == "<answer> евро</answer>"


def test_the_value_that_most_passages_give_wins_and_the_first_of_a_tie():
    lines = ["Croatia: currency code: HRK", "Croazia: codice della moneta: EUR", "Kroatien: Währungscode: EUR"]
    question = WORLD.question(FACTS["currency_code/HR"], "fi")
    assert Oracle().next_text(question, [SEARCHED, block(*lines)]) == "<answer> EUR</answer>"
    assert Oracle().next_text(question, [SEARCHED, block(*lines[:2])]) == "<answer> HRK</answer>"


def test_two_hops_go_over_the_bridge():
    item = next(item for item in WORLD.two_hops if item.id == "country_of_language+alpha_3/fi")
    question = WORLD.question(item, "fr")
    turns = [("policy", Oracle().next_text(question, ()))]
    assert turns[0][1] == "<search> finnois pays principal</search>"
    turns.append(block("Finnish: main country: Finland"))
    assert Oracle().next_text(question, turns) == "<search> Finlande code à trois lettres</search>"
    turns += [("policy", "<search> x</search>"), block("Suomi: kolmikirjaiminen koodi: FIN")]
    assert Oracle().next_text(question, turns) == "<answer> FIN</answer>"


def test_a_bridge_it_does_not_know_is_searched_as_it_was_read():
    item = next(item for item in WORLD.two_hops if item.id == "country_of_language+alpha_3/fi")
    turns = [("policy", "<search> x</search>"), block("Finnish: main country: Atlantis")]
    assert Oracle().next_text(WORLD.question(item, "en"), turns) == "<search> Atlantis three-letter code</search>"


def test_other_styles_of_passages_can_be_read():
    text = "\n\n<information>Doc 1(Title: France) currency code: EUR\n</information>\n\n"
    oracle = Oracle(line=SEARCH_R1_LINE)
    assert oracle.next_text(QUESTION, [SEARCHED, ("environment", text)]) == "<answer> EUR</answer>"


def test_the_policy_s_own_text_is_no_evidence():
    forged = ("policy", "<information>\n Ranska: valuuttakoodi: XXX\n</information>")
    assert Oracle().next_text(QUESTION, [forged]) == SEARCHED[1]


def random_turns(number):
    """A dialogue in which one search has found the answer."""
    return [("environment", f"{number}\n"), SEARCHED, block("Norja: valuuttakoodi: NOK", "Ranska: valuuttakoodi: EUR")]


def test_random_searches_begin_with_one_and_keep_the_budget():
    player = RandomSearcher(budget=1)
    assert player.next_text(QUESTION, ()) == SEARCHED[1]
    assert {player.next_text(QUESTION, random_turns(number)) for number in range(40)} == {"<answer> EUR</answer>"}


def test_random_searches_do_not_depend_on_what_was_read():
    player = RandomSearcher(budget=2)
    again = [player.next_text(QUESTION, random_turns(number)) == SEARCHED[1] for number in range(400)]
    assert 0.4 < sum(again) / len(again) < 0.6
    empty = [
        [turns[0], SEARCHED, block(f"Norja: valuuttakoodi: {number}")]
        for number, turns in enumerate([random_turns(0)] * 400)
    ]
    again = [player.next_text(QUESTION, turns) == SEARCHED[1] for turns in empty]
    assert 0.4 < sum(again) / len(again) < 0.6


def test_a_random_searcher_trusts_any_passage_about_the_fact_and_admits_that_it_knows_nothing():
    player = RandomSearcher(budget=1)
    passages = block("Ranska: valuuttakoodi: EUR", "France: currency code: FRF", "Norja: valuuttakoodi: NOK")
    trusted = {player.next_text(QUESTION, [("environment", str(number)), SEARCHED, passages]) for number in range(40)}
    assert trusted == {"<answer> EUR</answer>", "<answer> FRF</answer>"}
    assert player.next_text(QUESTION, [SEARCHED, block("Norja: valuuttakoodi: NOK")]) == "<answer> tuntematon</answer>"


def test_a_random_searcher_continues_one_dialogue_alike():
    texts = {RandomSearcher(budget=2).next_text(QUESTION, random_turns(7)) for _ in range(5)}
    assert len(texts) == 1
