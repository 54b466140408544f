"""The atlas: splits without leakage, parallel questions, what collections hold; comparisons and conjunctions."""

import collections
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys

import babel
import pytest
from atlas_weights import render_passage, training_text
from babel.lists import format_list

from lcrag.atlas import SPLITS, Fact, build_world, facts
from lcrag.atlas.facts import listed, query_text, section_of, subject_of
from lcrag.atlas.oracle import Oracle, read_texts
from lcrag.atlas.world import atlas_comparisons, atlas_conjunctions, mentioned_entities, split_facts
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.errors import UserError
from lcrag.methods.rag_r1.curation import ParallelOracle, training_memory
from lcrag.methods.rag_r1.program import parallel_queries

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
HOPS = (1, 2, 3, 4)


def facts_of(*splits: str) -> list[Fact]:
    return [fact for fact in WORLD.facts if WORLD.splits[fact.id] in splits]


def unseen_entities() -> set[tuple[str, str]]:
    return {subject_of(fact) for fact in facts_of("unseen")} - {subject_of(fact) for fact in facts_of("train")}


def test_the_world_is_that_of_the_shipped_policies_whichever_babel_is_installed():
    """All questions, splits and passages, so facts, names and wording; a change of them asks for new weights."""
    assert WORLD.fingerprint == "d2ef8691f417ca0a"
    assert split_facts(WORLD.facts, 1) != split_facts(WORLD.facts, 0)
    assert sum(len(WORLD.passages(language)) for language in LCRL_LANGUAGES) == 7309
    shipped = pathlib.Path(facts.__file__).with_name("facts.json").read_text()
    if babel.__version__ in shipped.partition(";")[0]:
        script = pathlib.Path(facts.__file__).parents[2] / "launch" / "atlas_facts.py"
        made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        assert made.stdout == shipped
    imports = "import babel, lcrag.data.questions; babel.Locale = babel.core.Locale = babel.core.get_global = None; "
    code = f"{imports}from lcrag.atlas import build_world; print(build_world().fingerprint)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.strip() == WORLD.fingerprint, ended.stderr


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


def test_a_counterfactual_passage_differs_in_its_value_alone():
    fact = FACTS["currency/FI"]
    language = next(code for code in LCRL_LANGUAGES if WORLD.holds(fact, code))
    true = render_passage(WORLD.passage(section_of(fact), language))
    told = Fact(fact.relation, fact.subject, "JPY")
    (now,), (then,) = ([WORLD.name(("currency", code), language).text] for code in ("EUR", "JPY"))
    assert render_passage(WORLD.passage(section_of(fact), language, told)) == true.replace(now, then, 1) != true


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


BY_SUBJECT = {(fact.relation, fact.subject): fact for fact in WORLD.facts}
PASSAGES = {
    query_text("en", fact.relation, WORLD.name(subject_of(fact), "en").text): render_passage(
        WORLD.passage(section_of(fact), "en")
    )
    for fact in WORLD.facts
    if fact.id in WORLD.holdings["en"]
}
NOTHING = "No passages were found."
FORMS = {"comparison": (atlas_comparisons, 2), "conjunction": (atlas_conjunctions, 3)}
each_form = pytest.mark.parametrize("form", FORMS)


def asked(form, split="train", languages=("en",)):
    return FORMS[form][0](split, languages)


def chain_questions(hops, split="train"):
    return WORLD.questions(split, ["en"], hops=(hops,))


def facts_asked(question):
    relation = question.extra["kind"].partition("+")[2]
    return [BY_SUBJECT[relation, code] for _, code in question.extra["subjects"]]


def play(question, queries, memory=None, hurried=0.0):
    """(answer, searches with their queries) of an episode with a perfect retriever of the English collection."""
    oracle = ParallelOracle(queries=queries, memory=memory or {}, hurried=hurried)
    turns, searches = [("environment", question.text)], []
    while "</answer>" not in (text := oracle.next_text(question, turns)):
        sent = parallel_queries(text.partition("<search>")[2].partition("</search>")[0], queries).asked
        searches.append(sent)
        documents = [PASSAGES.get(query, NOTHING) for query in sent]
        content = json.dumps({"query": sent, "documents": documents}) if queries > 1 else f" {documents[0]}"
        turns += [("policy", text), ("environment", f"<information>\n{content}\n</information>\n")]
    return text.partition("<answer>")[2].partition("</answer>")[0].strip(), searches


def test_in_a_hurry_it_answers_after_one_search():
    asked = [question for question in chain_questions(2)[:120] if len(play(question, 1)[1]) == 2]
    half, every = ([len(play(question, 1, hurried=share)[1]) for question in asked] for share in (0.5, 1.0))
    assert set(every) == {1}
    assert 0.3 < half.count(1) / len(asked) < 0.7


def test_a_thought_notes_what_the_last_search_has_shown():
    question = next(each for each in chain_questions(2) if each.id == "country_of_language+currency/fi")
    oracle, turns = ParallelOracle(queries=1), [("environment", question.text)]
    notes = ("Finnish: main country: Finland", "Finland: currency: Euro")
    for note, action in zip(notes, ("<search> Finland currency</search>", "<answer> Euro</answer>"), strict=True):
        shown = f"<information>\n {note}; three-letter code: x\n</information>\n"
        turns += [("policy", oracle.next_text(question, turns)), ("environment", shown)]
        assert oracle.next_text(question, turns) == f"<think>\n {note}\n</think>{action}"
    turns[-1] = ("environment", "<information>\n Norway: currency: x\n</information>\n")
    assert oracle.next_text(question, turns) == "<answer> unknown</answer>"


def test_the_earlier_one_is_the_answer_in_every_language():
    for question in asked("comparison", "held_out", LCRL_LANGUAGES):
        dates = [fact.value for fact in facts_asked(question)]
        assert dates[0] != dates[1]
        assert question.answers[0] == question.extra["entities"][dates[1] < dates[0]]
        assert all(name in question.text for name in question.extra["entities"])
    questions = asked("comparison")  # either side may win
    assert 0.4 < sum(each.answers[0] == each.extra["entities"][0] for each in questions) / len(questions) < 0.6


def test_a_conjunction_asks_for_three_values_in_order():
    for question in asked("conjunction", "held_out", LCRL_LANGUAGES):
        values = [WORLD.values(fact, question.language)[0] for fact in facts_asked(question)]
        assert question.answers[0] == ", ".join(values)
        assert question.answers[-1] == listed(values, question.language)
        places = [question.text.index(f" {name}") for name in question.extra["entities"]]
        assert places == sorted(places)
        assert "{" not in question.text

    # Lists are those of CLDR.
    assert listed(["a", "b", "c"], "en") == format_list(["a", "b", "c"], locale="en") == "a, b, and c"
    assert listed(["a", "b", "c"], "fi") == "a, b ja c"
    assert listed(["a", "b", "c"], "ja") == "a、b、c"
    assert listed(["a", "b", "c"], "zh") == "a、b 和c"  # a name stands between spaces or punctuation


@each_form
def test_splits_are_disjoint_and_guarded(form):
    splits = {name: asked(form, name) for name in SPLITS}
    groups = [
        (each.extra["kind"], frozenset(map(tuple, each.extra["subjects"])))
        for split in splits.values()
        for each in split
    ]
    assert len(set(groups)) == len(groups)
    assert all(len(split) > 50 for split in splits.values())
    for question in splits["train"]:
        assert {WORLD.splits[fact.id] for fact in facts_asked(question)} == {"train"}

    for question in splits["train"]:
        facts = facts_asked(question)
        assert len(facts) == len({fact.value for fact in facts}) == FORMS[form][1]
        assert list(question.extra["plan"]) == [f"Q{number}" for number in range(1, len(facts) + 1)]
        golden = [question.extra["sub_answers"][f"#{number}"][0] for number in range(1, len(facts) + 1)]
        assert golden == [WORLD.values(fact, "en")[0] for fact in facts]


@each_form
def test_independent_facts_take_one_round_or_one_each(form):
    held = [each for each in asked(form) if each.extra["native_holds"]][:40]
    assert held
    for question in held:
        answer, together = play(question, queries=3)
        assert answer in question.answers
        assert [len(sent) for sent in together] == [FORMS[form][1]]
        answer, apart = play(question, queries=1)
        assert answer in question.answers
        assert len(apart) == FORMS[form][1]

    question = held[0]  # the sequential oracle plays them in turn
    oracle, turns = Oracle(budget=FORMS[form][1]), []
    for query in question.extra["queries"]:
        assert (text := oracle.next_text(question, turns)) == f"<search> {query}</search>"
        turns += [("policy", text), ("environment", f"<information>\n {PASSAGES[query]}\n</information>")]
    assert oracle.next_text(question, turns) == f"<answer> {question.answers[0]}</answer>"


def test_the_sequential_oracle_searches_least_for_what_it_has_searched_for():
    question, turns = asked("conjunction")[0], []
    for query in (*question.extra["queries"], question.extra["queries"][0]):
        assert (text := Oracle(budget=9).next_text(question, turns)) == f"<search> {query}</search>"
        turns += [("policy", text), ("environment", "<information>\n</information>")]
    assert Oracle(budget=4).next_text(question, turns) == "<answer> unknown, unknown, unknown</answer>"


def test_chains_take_a_round_a_fact_unless_bridges_are_remembered():
    memory = training_memory(WORLD)
    for hops in (2, 3, 4):
        held = [each for each in chain_questions(hops) if each.extra["native_holds"]][:20]
        assert held
        for question in held:
            for queries, remembered, rounds in [(3, memory, -(-hops // 3)), (3, {}, hops), (1, memory, hops)]:
                answer, searches = play(question, queries, remembered)
                assert answer in question.answers
                assert len(searches) == rounds


def test_passages_correct_a_wrong_memory():
    question = next(each for each in chain_questions(2) if each.extra["native_holds"])
    first, subject = question.extra["kind"].partition("+")[0], question.extra["subject"][1]
    others = {fact.value for fact in WORLD.facts if fact.relation == first} - {training_memory(WORLD)[first, subject]}
    answer, searches = play(question, 3, {(first, subject): min(others)})
    assert answer in question.answers
    assert [len(sent) for sent in searches] == [2, 1]


def test_memory_may_have_gaps_and_mistakes():
    whole, partly = training_memory(WORLD), training_memory(WORLD, 0.6, 0.1)
    right = sum(whole[key] == value for key, value in partly.items())
    assert 0.57 < right / len(whole) < 0.66
    assert 0.67 < len(partly) / len(whole) < 0.73
    assert training_memory(WORLD, 0.6, 0.1) == partly != training_memory(WORLD, 0.6, 0.1, seed=1)
    assert training_memory(WORLD, 0.0) == {}
    assert partly.keys() < whole.keys()


@each_form
def test_missing_passages_are_not_searched_for_again(form):
    missing = next(each for each in asked(form) if not any(query in PASSAGES for query in each.extra["queries"]))
    unknown = missing.extra["entities"][0] if form == "comparison" else "unknown, unknown, unknown"
    for queries, rounds in [(3, 1), (1, FORMS[form][1])]:
        answer, searches = play(missing, queries)
        assert (len(searches), answer) == (rounds, unknown)
