"""The random player of R-Search's cold start, and the reader that follows rules."""

import collections

import pytest
from support import tiny_tokenizer

from lcrag.atlas import build_world
from lcrag.atlas.independent_facts import comparison_questions, conjunction_questions
from lcrag.atlas.wording import label
from lcrag.curation.playing import play
from lcrag.episodes import Chat
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.r_search.players import RandomReasoner, RuleReader
from lcrag.methods.r_search.program import r_search
from lcrag.retrieval.passages import Hit

LANGUAGES = ("en", "fi")
WORLD = build_world(seed=0, complete=LANGUAGES)
CHAIN = "country_of_language+currency"
QUESTION = next(each for each in WORLD.questions("train", ("fi",), hops=(2,)) if each.extra["kind"] == CHAIN)
LANGUAGE, COUNTRY = QUESTION.extra["entity"], QUESTION.extra["sub_answers"]["#1"][0]
BRIDGE, VALUE = f"{LANGUAGE}: päämaa: {COUNTRY}", f"{COUNTRY}: valuutta: {QUESTION.answers[0]}"
FIRST, SECOND = f"<search> {LANGUAGE} päämaa</search>", f"<search> {COUNTRY} valuutta</search>"


def block(*lines):
    return "environment", "<observation>\n" + "".join(f" {line}\n" for line in lines) + "</observation>\n"


def texts(*turns, evidence=True):
    """Returns the player's texts after each of many openings, which only seed its choices, and a dialogue."""
    player = RandomReasoner(budget=2, evidence=evidence)
    return {player.next_text(QUESTION, [("environment", f"{n}\n"), *turns]) for n in range(60)}


def test_it_begins_with_the_first_fact():
    assert texts() == {FIRST}


def test_it_notes_what_it_has_read_then_goes_on_or_answers():
    turns = (("policy", FIRST), block(f"{LANGUAGE}: kirjoitusjärjestelmä: x; päämaa: {COUNTRY}"))
    evidence = f"<original_evidence>\n {BRIDGE}\n</original_evidence>"
    assert texts(*turns) == {f" {BRIDGE}\n{SECOND}", f" {BRIDGE}\n{evidence}<answer> {COUNTRY}</answer>"}


def test_what_it_has_not_read_it_asks_again_and_does_not_know():
    turns = (("policy", FIRST), block("Norja: valuutta: Norjan kruunu"))
    unread = f"{LANGUAGE}: päämaa: ?"
    evidence = f"<original_evidence>\n {unread}\n</original_evidence>"
    assert texts(*turns) == {f" {unread}\n{FIRST}", f" {unread}\n{evidence}<answer> tuntematon</answer>"}


def test_its_evidence_is_a_part_of_its_notes():
    turns = (("policy", FIRST), block(BRIDGE), ("policy", f" {BRIDGE}\n{SECOND}"), block(VALUE))
    end = f"</original_evidence><answer> {QUESTION.answers[0]}</answer>"
    chosen = ([BRIDGE], [VALUE], [BRIDGE, VALUE])
    blocks = {f" {VALUE}\n<original_evidence>\n" + "".join(f" {line}\n" for line in own) + end for own in chosen}
    assert texts(*turns) == blocks
    assert texts(*turns, evidence=False) == {f" {VALUE}\n<answer> {QUESTION.answers[0]}</answer>"}


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([BRIDGE, VALUE], QUESTION.answers[0]),
        ([VALUE, BRIDGE], QUESTION.answers[0]),
        ([VALUE], ""),
        ([BRIDGE], ""),
        ([], ""),
        ([QUESTION.answers[0]], ""),
    ],
)
def test_the_reader_needs_every_fact_of_a_chain(lines, answer):
    assert RuleReader([QUESTION])([QUESTION.text], ["\n".join(lines)]) == [answer]


def several_facts(kind):
    questions = {"earlier": comparison_questions, "every": conjunction_questions}[kind](WORLD, "train", ["en"])
    question = questions[0]
    relation = label("en", question.extra["kind"].split("+")[1])
    values = [answers[0] for answers in question.extra["sub_answers"].values()]
    return question, [
        f"{name}: {relation}: {value}" for name, value in zip(question.extra["entities"], values, strict=True)
    ]


@pytest.mark.parametrize("kind", ["earlier", "every"])
def test_of_several_facts_each_is_searched_and_needed(kind):
    question, lines = several_facts(kind)
    player, turns = RandomReasoner(budget=9), []
    for line in lines:
        written = {player.next_text(question, [("environment", f"{n}\n"), *turns]) for n in range(60)}
        [search] = [text for text in written if "<search>" in text]
        assert search.endswith(f"<search> {line.rpartition(': ')[0].replace(':', '')}</search>")
        turns += [("policy", search), block(line)]
    final = {player.next_text(question, [("environment", f"{n}\n"), *turns]) for n in range(60)}
    assert any(text.endswith(f"<answer> {question.answers[0]}</answer>") for text in final)
    read = RuleReader([question])
    assert read([question.text] * 2, ["\n".join(lines), lines[0]]) == [question.answers[0], ""]


def test_the_reader_refuses_a_question_that_it_cannot_parse():
    with pytest.raises(UserError, match="RuleReader does not know the question 'Who\\?'"):
        RuleReader([QUESTION])(["Who?"], [BRIDGE])


def _hit(passage, language):
    return Hit(id=passage.id, title=passage.title, text=passage.text, score=1.0, language=language)


def search(queries, languages, passages):
    """Finds the section of the entity that a query begins with."""
    found = []
    for query, language in zip(queries, languages, strict=True):
        own = [each for each in WORLD.passages(language) if query.startswith(f"{each.title} ")]
        found.append([_hit(passage, language) for passage in own[:passages]])
    return found


def test_the_program_reads_what_it_plays_and_the_reader_its_evidence():
    questions = [each for each in WORLD.questions("train", LANGUAGES, hops=(2,)) if each.extra["kind"] == CHAIN][:40]
    player = RandomReasoner(budget=2)

    def teacher(question, turns, request):
        return player.next_text(question, [(turn.by, turn.text) for turn in turns])

    played = [(each, r_search(each, LANGUAGES, wording="atlas", budget=2, passages=8)) for each in questions]
    records = play(played, teacher, search, ContextTokenizer(tiny_tokenizer(), Chat()), context=6000)
    read = RuleReader(questions)
    outcomes = collections.Counter()
    for record in records:
        [believed] = read([record.question.text], [record.outcome.extra["evidence"]])
        right = record.outcome.answer == record.question.answers[0]
        outcomes[record.outcome.counts["valid_searches"], right, believed == record.question.answers[0]] += 1
        assert record.outcome.invalid_actions == 0
        assert record.outcome.counts["malformed_evidence"] == 0
    # One search never answers. With two it answers, and the evidence is complete only at times.
    assert {(searches, right) for searches, right, _ in outcomes} == {(1, False), (2, True)}
    assert {believed for searches, _, believed in outcomes if searches == 2} == {True, False}
