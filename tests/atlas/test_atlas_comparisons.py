"""Comparison questions of the atlas, and the oracle that searches for both sides of them at once."""

import json

import pytest

from lcrag.atlas import build_world
from lcrag.atlas.comparisons import WORDING, comparison_questions
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.errors import UserError
from lcrag.methods.rag_r1.oracle import ParallelOracle, training_memory, with_plain_documents
from lcrag.methods.rag_r1.parallel_queries import parallel_queries

WORLD = build_world(0)
PASSAGES = {
    f"{each.title} {each.text.partition(':')[0]}": f"{each.title}: {each.text}" for each in WORLD.passages("en")
}
NOTHING = "No passages were found."


def comparisons(split="train", languages=("en",)):
    return comparison_questions(WORLD, split, languages)


def two_hops(split="train"):
    return WORLD.questions(split, ["en"], hops=2)


def play(question, queries, memory=None):
    """(answer, searches with their queries) of an episode with a perfect retriever of the English collection."""
    oracle = ParallelOracle(queries=queries, memory=memory or {})
    turns, searches = [("environment", question.text)], []
    while "</answer>" not in (text := oracle.next_text(question, turns)):
        asked = parallel_queries(text.partition("<search>")[2].partition("</search>")[0], queries).asked
        searches.append(asked)
        documents = [PASSAGES.get(query, NOTHING) for query in asked]
        content = json.dumps({"query": asked, "documents": documents}) if queries > 1 else f" {documents[0]}"
        turns += [("policy", text), ("environment", f"<information>\n{content}\n</information>\n")]
    return text.partition("<answer>")[2].partition("</answer>")[0].strip(), searches


def test_the_earlier_one_is_the_answer_in_every_language():
    years = {(fact.relation, fact.subject): int(fact.value) for fact in WORLD.facts if fact.relation in WORDING}
    for question in comparisons("held_out", LCRL_LANGUAGES):
        relation = question.extra["kind"].partition("+")[2]
        told = [years[relation, code] for _, code in question.extra["subjects"]]
        assert told[0] != told[1]
        assert question.answers[0] == question.extra["entities"][told[1] < told[0]]
        assert all(name in question.text for name in question.extra["entities"])


def test_splits_are_disjoint_and_guarded():
    splits = {name: comparisons(name) for name in ("train", "validation", "held_out", "unseen")}
    pairs = [frozenset(map(tuple, each.extra["subjects"])) for split in splits.values() for each in split]
    kinds = [each.extra["kind"] for split in splits.values() for each in split]
    assert len(set(zip(kinds, pairs, strict=True))) == len(pairs)
    assert all(len(split) > 50 for split in splits.values())
    for question in splits["train"]:
        relation = question.extra["kind"].partition("+")[2]
        assert {WORLD.splits[f"{relation}/{code}"] for _, code in question.extra["subjects"]} == {"train"}


def test_versions_stand_together_and_either_side_may_win():
    questions = comparisons("train", ("en", "fi"))
    assert ([each.language for each in questions[:4]], questions[0].id) == (["en", "fi", "en", "fi"], questions[1].id)
    first = sum(each.answers[0] == each.extra["entities"][0] for each in questions) / len(questions)
    assert 0.4 < first < 0.6
    assert comparisons() == comparisons()
    with pytest.raises(UserError, match="unknown split"):
        comparisons("test")


def test_a_comparison_takes_one_round_or_two():
    held = [each for each in comparisons() if each.extra["native_holds"]][:40]
    for question in held:
        answer, together = play(question, queries=3)
        assert answer in question.answers
        assert [len(asked) for asked in together] == [2]
        answer, apart = play(question, queries=1)
        assert answer in question.answers
        assert len(apart) == 2


def test_two_hops_take_two_rounds_unless_the_first_is_remembered():
    held = [each for each in two_hops() if each.extra["native_holds"]][:40]
    memory = training_memory(WORLD)
    for question in held:
        for queries, remembered, rounds in [(3, memory, 1), (3, {}, 2), (1, memory, 2)]:
            answer, searches = play(question, queries, remembered)
            assert answer in question.answers
            assert len(searches) == rounds


def test_passages_correct_a_wrong_memory():
    question = next(each for each in two_hops() if each.extra["native_holds"])
    first, subject = question.extra["kind"].partition("+")[0], question.extra["subject"][1]
    others = {fact.value for fact in WORLD.facts if fact.relation == first} - {training_memory(WORLD)[first, subject]}
    answer, searches = play(question, 3, {(first, subject): min(others)})
    assert answer in question.answers
    assert [len(asked) for asked in searches] == [2, 1]


def test_memory_may_have_gaps_and_mistakes():
    whole, partly = training_memory(WORLD), training_memory(WORLD, 0.6, 0.1)
    right = sum(whole[key] == value for key, value in partly.items())
    assert 0.57 < right / len(whole) < 0.66
    assert 0.67 < len(partly) / len(whole) < 0.73
    assert training_memory(WORLD, 0.6, 0.1) == partly != training_memory(WORLD, 0.6, 0.1, seed=1)
    assert training_memory(WORLD, 0.0) == {}
    assert partly.keys() < whole.keys()


def test_missing_passages_are_not_searched_for_again():
    missing = [each for each in comparisons() if not any(query in PASSAGES for query in each.extra["queries"])][0]
    for queries, rounds in [(3, 1), (1, 2)]:
        answer, searches = play(missing, queries)
        assert (len(searches), answer) == (rounds, missing.extra["entities"][0])


def test_json_documents_are_read_like_lines():
    content = {"query": ["a"], "documents": ["Peru: currency code: PEN\nChad: numeric code: 148"]}
    text = f"<information>\n{json.dumps(content)}\n</information>"
    assert with_plain_documents(text).splitlines()[1:3] == ["Peru: currency code: PEN", "Chad: numeric code: 148"]
    plain = "<information>\n Peru: currency code: PEN\n</information>"
    assert "\n Peru: currency code: PEN\n" in with_plain_documents(plain)
