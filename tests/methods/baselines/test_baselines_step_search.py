"""StepSearch: what a search gains and repeats, which sub-question it matches, and who is rewarded for it."""

import dataclasses

import numpy as np
import pytest
from baseline_scripts import COLLECTIONS, QUESTION, drive, found
from finished_episodes import finished
from support import tiny_tokenizer

from lcrag.curation.playing import play
from lcrag.episodes import Chat, RetrievalFailure
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.baselines.step_search import (
    STEPS,
    SearchMemory,
    search_keys,
    step_search,
    step_search_reward,
    tf_idf_cosines,
)
from lcrag.retrieval import Hit
from lcrag.train.episode import at_last_tokens
from lcrag.train.method import Method

LIMA, RIMAC = "Lima is the capital of Peru.", "The Rimac flows through Lima."
DECOMPOSITION = [
    {"question": "What is the capital of Peru?", "answer": "Lima", "support": None},
    {"question": "Which river flows through #1?", "answer": "Rimac", "support": None},
]
KNOWN = {"golden_passages": [LIMA, RIMAC], "decomposition": DECOMPOSITION}
ASKED = dataclasses.replace(QUESTION, answers=("Rimac",), extra=KNOWN)


def hits(*texts):
    return [[[Hit(id=text, title="T", text=text, score=1.0, language="en") for text in texts]]]


def test_cosines_are_those_of_scikit_learn():
    """TfidfVectorizer().fit_transform(["lima capital peru", "capital of peru", "rimac"]) and cosine_similarity."""
    np.testing.assert_allclose(
        tf_idf_cosines("Lima capital Peru", ["capital of peru", "rimac"]), [0.5363500, 0], atol=1e-6
    )
    assert tf_idf_cosines("a", ["a", ""]).tolist() == [0, 0], "words of one character do not count"


def test_a_search_gains_what_earlier_ones_had_not_found():
    memory = SearchMemory([LIMA, RIMAC])
    assert memory.read(hits(LIMA))["gain"] > 0.5
    assert memory.read(hits(LIMA)) == {"gain": 0.0, "redundancy": 1.0}
    later = memory.read(hits(LIMA, RIMAC))
    assert 0 < later["gain"] <= 0.5
    assert later["redundancy"] == 0.5
    assert memory.read(RetrievalFailure("no route")) == {"gain": 0.0, "redundancy": 0.0}


def test_gold_only_is_a_gain_of_one():
    np.testing.assert_allclose(SearchMemory([LIMA]).read(hits(LIMA))["gain"], 1.0)
    assert SearchMemory([]).read(hits(LIMA)) == {"gain": 0.0, "redundancy": 0.0}


def test_the_program_reports_its_searches_and_the_turns_that_made_them():
    says = ["<search> a </search>", "hm", "<search> a </search>", "<answer> Rimac </answer>"]
    outcome, _ = drive(step_search(ASKED, COLLECTIONS), says, found)
    assert [(step["turn"], step["query"]) for step in outcome.extra[STEPS]] == [(0, "a"), (2, "a")]
    assert [step["redundancy"] for step in outcome.extra[STEPS]] == [0.0, 1.0]
    assert outcome.answer == "Rimac"


def scored(answers, steps, known=KNOWN, **settings):
    count = len(answers)
    reward = step_search_reward(**settings)
    notes = [{STEPS: own} for own in steps]
    episodes = finished(answers, [("Rimac",)] * count, group_ids=np.arange(count), extra=notes, known=[known] * count)
    return reward(episodes), reward.turn_rewards(episodes)


def test_rewards_by_hand():
    """F1 of the answer, plus .618 of the sub-questions' best F1; the searches' rewards stand apart."""
    first = {"turn": 0, "query": "What is the capital of Peru?", "gain": 0.5, "redundancy": 0.0}
    again = {"turn": 1, "query": "capital Peru", "gain": 0.0, "redundancy": 1.0}
    values, turns = scored(["Rimac", "Oslo", None], [[first, again], [], [first]])
    np.testing.assert_allclose(values["search_keys"], [0.5, 0, 0.5])
    np.testing.assert_allclose(values["total"], [1 + 0.618 / 2, 0, -1])
    np.testing.assert_allclose(values[STEPS], [-0.5, 0, 0])
    assert turns == [{0: 0.5, 1: -1.0}, {}, {}], "without an answer no search is rewarded"
    _, unpenalised = scored(["Rimac"], [[first, again]], redundancy_penalty=False, step_weight=2.0)
    assert unpenalised == [{0: 1.0, 1: 0.0}]


def test_search_keys_are_given_or_the_sub_questions_with_their_answers():
    assert search_keys(KNOWN) == [["What is the capital of Peru?"], ["Which river flows through Lima?"]]
    assert search_keys(KNOWN | {"search_keys": [["capital Peru", "Peru capital"]]}) == [
        ["capital Peru", "Peru capital"]
    ]


def test_questions_without_annotations_are_refused():
    with pytest.raises(UserError, match="cannot score q: it needs golden_passages and search_keys or a decomposition"):
        step_search_reward().check("q", {"decomposition": DECOMPOSITION})


def test_a_search_is_rewarded_at_its_last_token_and_only_with_a_critic():
    texts = iter(["<search> Peru</search>", "<answer> Rimac</answer>"])
    search = lambda queries, languages, k: hits(LIMA)[0]  # noqa: E731
    program = step_search(ASKED, ("fr",), wording="atlas")
    tokenizer = ContextTokenizer(tiny_tokenizer(), Chat())
    [record] = play([(ASKED, program)], lambda *_: next(texts), search, tokenizer, context=600)
    method = Method(
        name="StepSearch", program=step_search, reward=step_search_reward(), coupling="independent", samples=2
    )
    [scored] = method.score([record], step=0)
    trajectory = scored.trajectory()
    place = np.flatnonzero(trajectory.step_rewards)
    assert place.tolist() == [np.flatnonzero(record.turn == 0)[-1]]
    np.testing.assert_allclose(trajectory.step_rewards[place], record.outcome.extra[STEPS][0]["gain"])
    assert not at_last_tokens(record, {}).any()
    with pytest.raises(UserError, match=r"only a critic credits: add --gin_file=objective/ppo.gin"):
        method.table([ASKED])
    assert method.table([ASKED], group_baseline=False) == [(ASKED,)]
