"""The oracle answers from passages of the present and searches again otherwise; the random searcher by chance."""

import dataclasses

import pytest

from lcrag.atlas import Chain, build_world
from lcrag.atlas.oracle import MALFORMED, Oracle, RandomSearcher, entity_called
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


LINE = "Ranska: valuutta (2020): euro; valuuttakoodi (2019): EUR; valuutta käytössä alkaen: 1. tammikuuta 1999"
STALE = ["France: currency code (1995): FRF", "Frankreich: Währungscode (2001): FRF"]
OTHER = ["Norja: valuuttakoodi: NOK", "Ranska: pääkieli: ranska"]
TIED = ["France: currency code: FRF", "Francia: codice della moneta: EUR", "Frankreich: Währungscode: EUR"]


@pytest.mark.parametrize(
    ("lines", "budget", "answer"),
    [
        (["Norja: valuuttakoodi: NOK", "Ranska: valuuttakoodi: QQQ"], 3, "QQQ"),  # even if the passage is wrong
        ([LINE], 3, "EUR"),  # the sentence among others
        ([*STALE, "フランス: 通貨コード (2019): EUR"], 3, "EUR"),  # the present before a stale value that more give
        (STALE, 3, None),
        (STALE, 1, "FRF"),
        (OTHER, 3, None),  # another entity or relation
        (OTHER, 1, "NOK"),
        ([], 1, "tuntematon"),
        (TIED, 3, "EUR"),  # what most passages give
        (TIED[:2], 3, "FRF"),  # the first of a tie
    ],
)
def test_it_answers_from_passages_or_searches_again(lines, budget, answer):
    text = Oracle(budget=budget).next_text(QUESTION, [SEARCHED, block(*lines)])
    assert text == (SEARCHED[1] if answer is None else f"<answer> {answer}</answer>")


def test_it_searches_first_and_sees_neither_golden_answers_nor_the_policy_s_own_text_as_evidence():
    forged = ("policy", "<information>\n Ranska: valuuttakoodi: XXX\n</information>")
    for turns in ((), [("environment", f"{QUESTION.text}\n")], [forged]):
        assert Oracle().next_text(QUESTION, turns) == SEARCHED[1]
    blind = dataclasses.replace(QUESTION, answers=("?",))
    turns = [SEARCHED, block("France: currency code: EUR")]
    assert Oracle().next_text(blind, turns) == Oracle().next_text(QUESTION, turns) == "<answer> EUR</answer>"


def test_names_dates_and_amounts_are_read_in_any_script_and_answered_in_the_question_s_language():
    turns = [("policy", "<search> Suomi valuutta</search>"), block("フィンランド: 通貨: ユーロ")]
    assert Oracle().next_text(CURRENCY, turns) == "<answer> euro</answer>"
    pivot = dataclasses.replace(CURRENCY, extra=CURRENCY.extra | {"answer_language": "ru"})
    assert Oracle().next_text(pivot, turns) == "<answer> евро</answer>"
    for relation, read, answer in (
        ("currency_since", "France: currency introduced on: January 1, 1999", "1. tammikuuta 1999"),
        ("main_language_share", "France: share of the main language (2020): 94 percent", "94 prosenttia"),
    ):
        question = WORLD.question(Chain((FACTS[f"{relation}/FR"],)), "fi")
        assert Oracle().next_text(question, [SEARCHED, block(read)]) == f"<answer> {answer}</answer>"


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


def test_random_searches_do_not_depend_on_what_was_read():
    player = RandomSearcher(budget=2)
    for passage in ("Ranska: valuuttakoodi: EUR", "Norja: valuuttakoodi: NOK"):
        texts = [
            player.next_text(QUESTION, [("environment", f"{number}\n"), SEARCHED, block(passage)])
            for number in range(400)
        ]
        again = [text.endswith(SEARCHED[1]) for text in texts]
        assert 0.4 < sum(again) / len(again) < 0.6


def test_a_random_searcher_notes_any_passage_about_the_fact_and_answers_with_the_value_of_its_last_note():
    passages = block("Ranska: valuuttakoodi: EUR", "France: currency code (1995): FRF", "Norja: valuuttakoodi: NOK")

    def texts(**options):
        player = RandomSearcher(budget=1, **options)
        assert player.next_text(QUESTION, ()) == SEARCHED[1]
        return {player.next_text(QUESTION, [("environment", str(n)), SEARCHED, passages]) for n in range(80)}

    right, stale = " Ranska: valuuttakoodi: EUR\n", " France: currency code (1995): FRF\n"
    one = {f"{right}<answer> EUR</answer>", f"{stale}<answer> FRF</answer>"}
    assert texts() == one
    assert texts(max_notes=2) == one | {f"{right}{stale}<answer> FRF</answer>", f"{stale}{right}<answer> EUR</answer>"}
    unread = RandomSearcher(budget=1).next_text(QUESTION, [SEARCHED, block("Norja: valuuttakoodi: NOK")])
    assert unread == " Ranska: valuuttakoodi: ?\n<answer> tuntematon</answer>"


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


def test_a_value_is_called_by_the_first_language_that_has_it():
    assert entity_called("currency", "euro", ("fi", "fr")) == "EUR"
    assert entity_called("date", "28. helmikuuta 2002", ("en", "fi")) == "2002-02-28"
    assert entity_called("date", "28. helmikuuta 2002", ("en", "ja")) is None
