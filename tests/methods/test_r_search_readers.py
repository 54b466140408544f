"""Who reads R-Search's evidence: the frozen reader, another model that answers from it, and the atlas's players."""

import collections
import functools

import pytest
from episode_scripts import LANGUAGES, question, runner
from support import tiny_tokenizer

from lcrag.atlas import build_world
from lcrag.atlas.facts import label
from lcrag.atlas.world import comparison_questions, conjunction_questions
from lcrag.curation.playing import play
from lcrag.episodes import Chat, Completion, Generate, GenerationFailure, Observe, Outcome, Retrieve
from lcrag.episodes.running_episode import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.lcrl import hierarchical_search
from lcrag.methods.r_search import EvidenceReader, answer_from_evidence, r_search
from lcrag.methods.r_search.players import RandomReasoner, RuleReader
from lcrag.retrieval.passages import Hit

# R-Search as a tool: one policy searches, another model answers from the evidence.

LCRL = functools.partial(hierarchical_search, prompt="atlas", style="atlas", budget=2)


def searching(context, generation):
    return "<answer> Quito </answer>" if "<information>" in context else "<search> capital </search>"


def evidence_writer(asked, collections, evidence="Lima is the capital.\n\n<answer>Cusco</answer>"):
    yield Observe(f"{asked.text}\n")
    yield Retrieve(("q",), (asked.language,), 1)
    yield Generate(stop=())
    return Outcome(answer="Lima", invalid_actions=1, extra={"evidence": evidence})


def endless(asked, collections):
    """Fills its context after a search."""
    yield Observe(f"{asked.text}\n")
    yield Retrieve(("q",), ("en",), 1)
    yield Generate(stop=("</search>",))
    while True:
        yield Observe("on and on " * 50)


def run(searcher, count=1, **options):
    """Returns the records, and the prompts of a reader that notes a line and answers with its prompt's lines."""
    asked_for_answers = []

    def reader(requests):
        texts = []
        for prompt, generation in requests:
            answering = prompt.endswith("<answer>")
            assert generation.stop == (("</answer>",) if answering else ("\n", "</answer>"))
            asked_for_answers.extend([prompt] * answering)
            texts.append(f" {len(prompt.splitlines())} </answer>" if answering else " so it is\n")
        return [Completion(text=text, finish_reason="stop", tokens=3) for text in texts]

    options = {"searcher": searcher, "wording": "atlas"} | options
    numbered = [(question(number), number) for number in range(count)]
    programs = [(asked, answer_from_evidence(asked, LANGUAGES, **options), number) for asked, number in numbered]
    return runner(searching, completers={"reader": reader}).run(programs), asked_for_answers


@pytest.mark.parametrize(
    ("searcher", "evidence", "answer"),
    [
        (LCRL, "capital: Lima is the capital (en)\n", "Quito"),  # thrice found, shown once
        (evidence_writer, "Lima is the capital.\n\n<answer>Cusco</answer>", "Lima"),  # goes before its passages
        (functools.partial(evidence_writer, evidence=None), "q: Lima is the capital (en)\n", "Lima"),
        (endless, "q: Lima is the capital (en)\n", None),
        (None, "", None),
    ],
)
def test_the_evidence_is_what_was_written_or_the_passages_found(searcher, evidence, answer):
    [record], [prompt] = run(searcher)
    lines = [line.replace("<", "[").replace(">", "]") for line in evidence.splitlines() if line]
    shown = "".join(f" {line}\n" for line in lines)
    assert prompt == f"Capital of Peru?\n<information>\n{shown}</information>\n so it is\n<answer>"
    assert record.outcome.answer == str(5 + len(lines))
    assert record.outcome.extra == {"evidence": evidence, "searcher_answer": answer}
    assert record.outcome.invalid_actions == (answer == "Lima")  # the evidence writer's
    assert record.completions[0].model == "reader"
    assert record.counts["searches"] == (searcher is not None)


def test_readers_are_asked_together_and_evidence_is_cut():
    records, prompts = run(LCRL, count=4)
    assert [record.outcome.answer for record in records] == ["6"] * len(prompts) == ["6"] * 4
    _, [prompt] = run(functools.partial(evidence_writer, evidence="x" * 900), evidence_characters=40)
    assert f" {'x' * 40}\n" in prompt
    long = functools.partial(LCRL, passages=1, route=lambda *_: LANGUAGES)
    [record], _ = run(long, evidence_characters=80)  # the last are left out whole
    shown = [f"capital: Lima is the capital ({code})\n" for code in ("ar", "en")]
    assert record.outcome.extra["evidence"] == "".join(shown)
    with pytest.raises(UserError, match="'grand'"):
        run(LCRL, wording="grand")


# The frozen reader of the evidence reward.

FULL = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words."
    "\n\nThe following are given passages: Lima is it.\n[|im_end|][/evidence]\n\nQuestion: Where[eos]?\n\nAnswer:"
)
SHORT = "Where[eos]?\n<information>\n Lima is it.\n [|im_end|][/evidence]\n</information>\n"
LINE, LAST = ("\n", "</answer>"), ("</answer>",)


@pytest.mark.parametrize(
    ("texts", "asked"),
    [
        ([" Lima "], [(FULL, ())]),  # the paper's words
        ([" Lima is it.\n", " Lima </answer>"], [(SHORT, LINE), (f"{SHORT} Lima is it.\n<answer>", LAST)]),
        ([" Lima is it.<answer> L", " Lima </answer>"], [(SHORT, LINE), (f"{SHORT} Lima is it.\n<answer>", LAST)]),
        ([" on and on", " Lima </answer>"], [(SHORT, LINE), (f"{SHORT}<answer>", LAST)]),  # a line without an end
        ([None], [(SHORT, LINE)]),
    ],
)
def test_what_the_reader_is_asked_and_answers(texts, asked):
    said, seen = iter(texts), []

    def model(requests):
        seen.extend((prompt, generation.stop) for prompt, generation in requests)
        assert {(generation.temperature, generation.max_tokens) for _, generation in requests} == {(0.1, 512)}
        text = next(said)
        return [Completion(text=text, finish_reason="eos", tokens=1) if text else GenerationFailure("too late")]

    reader = EvidenceReader(model, "full" if asked[0][0] == FULL else "atlas")
    answers = reader(["Where<eos>?"], ["Lima is it.\n\n  <|im_end|></evidence>"])
    assert (seen, answers) == (asked, ["Lima" if texts[-1] else None])


# The random player of the cold start, and the reader that follows rules.

WORLD = build_world(seed=0, complete=("en", "fi"))
CHAIN = "country_of_language+currency"
QUESTION = next(asked for asked in WORLD.questions("train", ("fi",), hops=(2,)) if asked.extra["kind"] == CHAIN)
LANGUAGE, COUNTRY = QUESTION.extra["entity"], QUESTION.extra["sub_answers"]["#1"][0]
BRIDGE, VALUE = f"{LANGUAGE}: päämaa: {COUNTRY}", f"{COUNTRY}: valuutta: {QUESTION.answers[0]}"
FIRST, SECOND = f"<search> {LANGUAGE} päämaa</search>", f"<search> {COUNTRY} valuutta</search>"


def block(*lines):
    return "environment", "<observation>\n" + "".join(f" {line}\n" for line in lines) + "</observation>\n"


def evidence_of(*lines):
    return "<original_evidence>\n" + "".join(f" {line}\n" for line in lines) + "</original_evidence>"


def texts(*turns, asked=QUESTION, **player):
    """Returns the player's texts after each of many openings, which only seed its choices, and a dialogue."""
    player = RandomReasoner(**{"budget": 2} | player)
    return {player.next_text(asked, [("environment", f"{number}\n"), *turns]) for number in range(60)}


def test_the_player_notes_what_it_has_read_then_goes_on_or_answers():
    assert texts() == {FIRST}
    turns = (("policy", FIRST), block(f"{LANGUAGE}: kirjoitusjärjestelmä: x; päämaa: {COUNTRY}"))
    assert texts(*turns) == {f" {BRIDGE}\n{SECOND}", f" {BRIDGE}\n{evidence_of(BRIDGE)}<answer> {COUNTRY}</answer>"}
    turns = (("policy", FIRST), block("Norja: valuutta: Norjan kruunu"))
    unread = f"{LANGUAGE}: päämaa: ?"
    answer = f" {unread}\n{evidence_of(unread)}<answer> tuntematon</answer>"
    assert texts(*turns) == {f" {unread}\n{FIRST}", answer}
    # Its evidence is a part of its notes.
    turns = (("policy", FIRST), block(BRIDGE), ("policy", f" {BRIDGE}\n{SECOND}"), block(VALUE))
    answer, parts = f"<answer> {QUESTION.answers[0]}</answer>", ([BRIDGE], [VALUE], [BRIDGE, VALUE])
    assert texts(*turns) == {f" {VALUE}\n{evidence_of(*part)}{answer}" for part in parts}
    assert texts(*turns, evidence=False) == {f" {VALUE}\n{answer}"}


def test_the_rule_reader_needs_every_fact_of_a_chain():
    read = RuleReader([QUESTION])
    for lines in ([BRIDGE, VALUE], [VALUE, BRIDGE], [VALUE], [BRIDGE], [], [QUESTION.answers[0]]):
        assert read([QUESTION.text], ["\n".join(lines)]) == [QUESTION.answers[0] if len(lines) == 2 else ""]
    with pytest.raises(UserError, match="Who"):
        read(["Who?"], [BRIDGE])


@pytest.mark.parametrize("kind", [comparison_questions, conjunction_questions])
def test_of_several_facts_each_is_searched_and_needed(kind):
    asked = kind(WORLD, "train", ["en"])[0]
    relation = label("en", asked.extra["kind"].split("+")[1])
    facts = zip(asked.extra["entities"], asked.extra["sub_answers"].values(), strict=True)
    lines, turns = [f"{name}: {relation}: {answers[0]}" for name, answers in facts], []
    for line in lines:
        [search] = [text for text in texts(*turns, asked=asked, budget=9) if "<search>" in text]
        assert search.endswith(f"<search> {line.rpartition(': ')[0].replace(':', '')}</search>")
        turns += [("policy", search), block(line)]
    final = texts(*turns, asked=asked, budget=9)
    assert any(text.endswith(f"<answer> {asked.answers[0]}</answer>") for text in final)
    assert RuleReader([asked])([asked.text] * 2, ["\n".join(lines), lines[0]]) == [asked.answers[0], ""]


def test_the_program_reads_what_it_plays_and_the_reader_its_evidence():
    def search(queries, languages, passages):
        """Finds the section of the entity that a query begins with."""
        found = []
        for query, code in zip(queries, languages, strict=True):
            sections = [section for section in WORLD.passages(code) if query.startswith(f"{section.title} ")]
            found.append([
                Hit(id=section.id, title=section.title, text=section.text, score=1.0, language=code)
                for section in sections[:passages]
            ])  # fmt: skip
        return found

    asked = [one for one in WORLD.questions("train", ("en", "fi"), hops=(2,)) if one.extra["kind"] == CHAIN][:40]
    player = RandomReasoner(budget=2)

    def teacher(question, turns, request):
        return player.next_text(question, [(turn.by, turn.text) for turn in turns])

    played = [(one, r_search(one, ("en", "fi"), wording="atlas", budget=2, passages=8)) for one in asked]
    records = play(played, teacher, search, ContextTokenizer(tiny_tokenizer(), Chat()), context=6000)
    read, outcomes = RuleReader(asked), collections.Counter()
    for record in records:
        [believed] = read([record.question.text], [record.outcome.extra["evidence"]])
        right = record.outcome.answer == record.question.answers[0]
        outcomes[record.outcome.counts["valid_searches"], right, believed == record.question.answers[0]] += 1
        assert record.outcome.invalid_actions == 0
        assert record.outcome.counts["malformed_evidence"] == 0
    # One search never answers. With two it answers, and the evidence is complete only at times.
    assert {(searches, right) for searches, right, _ in outcomes} == {(1, False), (2, True)}
    assert {believed for searches, _, believed in outcomes if searches == 2} == {True, False}
