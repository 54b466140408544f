"""The oracle that gives evidence: what it relies on, copied as it was shown, and then its answer."""

import pytest

from lcrag.atlas import Chain, build_world
from lcrag.atlas.holdings import Entry
from lcrag.atlas.independent_facts import conjunction_questions
from lcrag.curation.playing import play
from lcrag.episodes import Chat, local_first
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.methods.r_search.oracle import EvidenceOracle
from lcrag.methods.r_search.program import r_search
from lcrag.retrieval.passages import Hit
from lcrag.testing import tiny_tokenizer

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
QUESTION = WORLD.question(Chain((FACTS["currency_code/FR"],)), "fi")
SEARCHED = ("policy", "<search> Ranska valuuttakoodi</search>")


def block(*lines):
    return "environment", "<observation>\n" + "".join(f" {line}\n" for line in lines) + "</observation>\n"


@pytest.mark.parametrize(
    ("lines", "relied_on", "answer"),
    [
        (("Norja: valuuttakoodi: NOK", "Ranska: valuuttakoodi: EUR"), "Ranska: valuuttakoodi: EUR", "EUR"),
        (("France: currency code: FRF", "Ranska: valuuttakoodi: FRF"), "France: currency code: FRF", "FRF"),
        (("Saksa: valuuttakoodi: EUR", "Ranska: valuuttakoodi: EUR"), "Ranska: valuuttakoodi: EUR", "EUR"),
        (("Norja: valuuttakoodi: NOK",), "Norja: valuuttakoodi: NOK", "NOK"),  # a guess stands on something too
    ],
)
def test_it_copies_one_passage_that_says_so(lines, relied_on, answer):
    text = EvidenceOracle(budget=1).next_text(QUESTION, [SEARCHED, block(*lines)])
    assert text == f"<original_evidence>\n {relied_on}\n</original_evidence><answer> {answer}</answer>"


def test_of_a_chain_it_copies_every_fact():
    chain = next(each for each in WORLD.chains if each.id == "country_of_language+currency+code_of_currency/fi")
    facts = ("Finnish: main country: Finland", "Suomi: valuutta: euro; valuuttakoodi: EUR", "Euro: code (2019): EUR")
    turns = [SEARCHED, block(facts[0], "Norway: three-letter code: NOR"), SEARCHED, block(facts[1]), SEARCHED]
    text = EvidenceOracle(budget=4).next_text(WORLD.question(chain, "fr"), [*turns, block(facts[2])])
    assert text == "<original_evidence>\n " + "\n ".join(facts) + "\n</original_evidence><answer> EUR</answer>"


def test_of_a_conjunction_it_copies_every_fact():
    question = next(
        each for each in conjunction_questions(WORLD, "train", ["en"]) if each.extra["kind"] == "every+currency"
    )
    lines = [
        f"{name}: currency: {question.extra['sub_answers'][f'#{number}'][0]}"
        for number, name in enumerate(question.extra["entities"], start=1)
    ]
    text = EvidenceOracle().next_text(question, [SEARCHED, block(*lines, "Finland: currency: Euro")])
    evidence = "<original_evidence>\n " + "\n ".join(lines) + "\n</original_evidence>"
    assert text == f"{evidence}<answer> {question.answers[0]}</answer>"


def test_it_relies_on_the_present():
    lines = ("Ranska: valuuttakoodi (1995): FRF", "France: currency code (2021): EUR")
    text = EvidenceOracle(budget=1).next_text(QUESTION, [SEARCHED, block(*lines)])
    assert text == f"<original_evidence>\n {lines[1]}\n</original_evidence><answer> EUR</answer>"


def test_it_searches_as_the_other_oracle_does_and_may_leave_the_evidence_out():
    assert EvidenceOracle().next_text(QUESTION, ()) == SEARCHED[1]
    assert EvidenceOracle(budget=0).next_text(QUESTION, ()) == "<answer> tuntematon</answer>"
    shown = [SEARCHED, block("Ranska: valuuttakoodi: EUR")]
    assert EvidenceOracle(evidence=False).next_text(QUESTION, shown) == "<answer> EUR</answer>"


def test_a_hasty_one_answers_a_share_of_the_questions_after_one_search():
    missing = [SEARCHED, block("Norja: valuuttakoodi: NOK")]
    assert EvidenceOracle(hasty=1.0).next_text(QUESTION, ()) == SEARCHED[1]
    assert EvidenceOracle(hasty=1.0).next_text(QUESTION, missing).endswith("<answer> NOK</answer>")
    assert EvidenceOracle(hasty=0.0).next_text(QUESTION, missing) == SEARCHED[1]
    questions = [WORLD.question(Chain((fact,)), "fi") for fact in list(FACTS.values())[:400]]
    hurried = [EvidenceOracle(hasty=0.3).next_text(each, [("policy", "<search> x</search>")]) for each in questions]
    assert 0.2 < sum("</answer>" in text for text in hurried) / len(questions) < 0.4


def search(queries, languages, passages):
    """Finds the fact in every language but the asked one, behind another country's."""
    facts = [FACTS["currency_code/NO"], *([] if languages[0] == "fi" else [FACTS["currency_code/FR"]])]
    found = [
        [WORLD.written_passage("", language, [(fact, Entry(fact.value, None))]) for fact in facts]
        for language in languages
    ]
    return [
        [Hit(id=str(n), title=p.title, text=p.text, score=1.0, language=language) for n, p in enumerate(passages)]
        for passages, language in zip(found, languages, strict=True)
    ]


def test_the_program_reads_what_the_oracle_plays():
    def teacher(question, turns, request):
        return EvidenceOracle(budget=2).next_text(question, [(turn.by, turn.text) for turn in turns])

    program = r_search(QUESTION, ("en", "fi"), wording="atlas", budget=2, route=local_first)
    tokenizer = ContextTokenizer(tiny_tokenizer(), Chat())
    [record] = play([(QUESTION, program)], teacher, search, tokenizer, context=2000)
    assert record.outcome.answer == "EUR"
    evidence = "France: currency code: EUR"
    assert record.outcome.extra == {"evidence": evidence, "valid_searches": 2, "well_formed_answer": True}
    assert not any(count for name, count in record.outcome.counts.items() if "malformed" in name)
