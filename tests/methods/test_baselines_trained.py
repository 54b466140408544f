"""The baselines that are trained: D-RAG on texts from golden answers, StepSearch on rewards of its searches."""

import dataclasses

import numpy as np
import pytest
from baseline_scripts import QUESTION, TOKENIZER, drive
from finished_episodes import finished

from lcrag.curation.playing import misread, play
from lcrag.episodes import Chat, RetrievalFailure
from lcrag.episodes.running_episode import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.baselines import adaptive_rag, d_rag, step_search
from lcrag.methods.baselines.d_rag import NO_EVIDENCE, GoldenArguments
from lcrag.methods.baselines.searches import STEPS, SearchMemory, search_keys, step_search_reward, tf_idf_cosines
from lcrag.retrieval import Hit
from lcrag.train.method import Method, at_last_tokens

CONTEXT = ContextTokenizer(TOKENIZER, Chat())

# D-RAG.

IN_JAPANESE = dataclasses.replace(QUESTION, language="ja", text="ペルーの首都は？", answers=("リマ",))
PASSAGES = {
    "fr": "Le Pérou est un pays. Sa capitale est Lima. Lima compte dix millions d'habitants.",
    "ja": "ペルーは国である。首都はリマである。",
    "ar": "Cusco? No.",
    "en": "",
}


def search(queries, languages, k):
    texts = [PASSAGES[code] for code in languages]
    return [[Hit(id="1", title="Pérou (pays)", text=text, score=1.0, language="fr")] if text else [] for text in texts]


def argued(wording, question=QUESTION, program=d_rag, questions=(QUESTION, IN_JAPANESE)):
    """The episode that golden answers write, and the texts of its arguments."""
    played = [(question, program(question, tuple(PASSAGES), wording=wording))]
    [record] = play(played, GoldenArguments(questions), search, CONTEXT, context=9000)
    return record, [completion.text for completion in record.completions]


def test_an_argument_quotes_the_sentence_with_a_golden_answer_in_any_language():
    record, arguments = argued("full")
    assert arguments == [
        "<information> Extraction: Sa capitale est Lima. Explanation: this supports the answer Lima. </information>",
        "<information> Extraction: 首都はリマである。 Explanation: this supports the answer リマ. </information>",
        f"<information> {NO_EVIDENCE} </information>",
    ]
    assert record.turns[-1].text == (
        "<think> The arguments from French, Japanese passages support the answer. Those from Arabic passages have no"
        " evidence. </think>\n<answer> Lima </answer>"
    )
    assert misread(record) == ""


def test_the_short_wording_quotes_whole_passages():
    record, arguments = argued("atlas")
    assert arguments == [f" Pérou (pays): {PASSAGES[code]}\n" for code in ("fr", "ja")] + [" ?\n"]
    assert f"\n Pérou (pays): {PASSAGES['fr']}\n" in record.prompt
    assert (record.turns[-1].text, record.outcome.answer) == ("<answer> Lima</answer>", "Lima")


@pytest.mark.parametrize(("gold", "supported"), [("pays", [True, False, False]), ("no", [False, False, False])])
def test_titles_and_verdicts_are_no_evidence(gold, supported):
    question = dataclasses.replace(QUESTION, answers=(gold,))
    _, arguments = argued("full", question, questions=(question,))
    assert ["Extraction" in argument for argument in arguments] == supported
    titled = dataclasses.replace(QUESTION, answers=("Pérou (pays)",))
    assert argued("atlas", titled, questions=(titled,))[1] == [" ?\n"] * 3


def test_another_program_is_refused():
    with pytest.raises(UserError, match="@d_rag"):
        argued("full", program=adaptive_rag)


# StepSearch.

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
    cosines = tf_idf_cosines("Lima capital Peru", ["capital of peru", "rimac"])
    np.testing.assert_allclose(cosines, [0.5363500, 0], atol=1e-6)
    assert tf_idf_cosines("a", ["a", ""]).tolist() == [0, 0], "words of one character do not count"


def test_a_search_gains_what_earlier_ones_had_not_found():
    memory = SearchMemory([LIMA, RIMAC])
    assert memory.read(hits(LIMA))["gain"] > 0.5
    assert memory.read(hits(LIMA)) == {"gain": 0.0, "redundancy": 1.0}
    later = memory.read(hits(LIMA, RIMAC))
    assert 0 < later["gain"] <= 0.5
    assert later["redundancy"] == 0.5
    assert memory.read(RetrievalFailure("no route")) == {"gain": 0.0, "redundancy": 0.0}
    np.testing.assert_allclose(SearchMemory([LIMA]).read(hits(LIMA))["gain"], 1.0)
    assert SearchMemory([]).read(hits(LIMA)) == {"gain": 0.0, "redundancy": 0.0}


def test_the_program_reports_its_searches_and_the_turns_that_made_them():
    says = ["<search> a </search>", "hm", "<search> a </search>", "<answer> Rimac </answer>"]
    outcome, _ = drive(step_search, says, question=ASKED)
    reported = [(step["turn"], step["query"], step["redundancy"]) for step in outcome.extra[STEPS]]
    assert reported == [(0, "a", 0.0), (2, "a", 1.0)]
    assert outcome.answer == "Rimac"


def scored(answers, steps, **settings):
    count = len(answers)
    reward = step_search_reward(**settings)
    extra = [{STEPS: searches} for searches in steps]
    episodes = finished(answers, [("Rimac",)] * count, group_ids=np.arange(count), extra=extra, known=[KNOWN] * count)
    return reward(episodes), reward.turn_rewards(episodes)


def test_rewards_by_hand():
    """F1 of the answer, plus .618 of the sub-questions' best F1; the searches' rewards stand apart."""
    first = {"turn": 0, "query": "What is the capital of Peru?", "gain": 0.5, "redundancy": 0.0}
    again = {"turn": 1, "query": "capital through Peru", "gain": 0.0, "redundancy": 1.0}
    values, turns = scored(["Rimac", "Oslo", None], [[first, again], [], [first]])
    np.testing.assert_allclose(values["search_keys"], [0.5, 0, 0.5])
    np.testing.assert_allclose(values["total"], [1 + 0.618 / 2, 0, -1])
    np.testing.assert_allclose(values[STEPS], [-0.5, 0, 0])
    assert turns == [{0: 0.5, 1: -1.0}, {}, {}], "without an answer no search is rewarded"
    _, unpenalised = scored(["Rimac"], [[first, again]], redundancy_penalty=False, step_weight=2.0)
    assert unpenalised == [{0: 1.0, 1: 0.0}]


def test_search_keys_are_given_or_the_sub_questions_with_their_answers():
    assert search_keys(KNOWN) == [["What is the capital of Peru?"], ["Which river flows through Lima?"]]
    keys = [["capital Peru", "Peru capital"]]
    assert search_keys(KNOWN | {"search_keys": keys}) == keys


def test_a_search_is_rewarded_at_its_last_token_and_only_with_a_critic():
    texts = iter(["<search> Peru</search>", "<answer> Rimac</answer>"])
    program = step_search(ASKED, ("fr",), wording="atlas")
    [record] = play([(ASKED, program)], lambda *_: next(texts), lambda *_: hits(LIMA)[0], CONTEXT, context=600)
    method = Method(
        name="StepSearch", program=step_search, reward=step_search_reward(), coupling="independent", samples=2
    )
    [episode] = method.score([record], step=0)
    trajectory = episode.trajectory()
    place = np.flatnonzero(trajectory.step_rewards)
    assert place.tolist() == [np.flatnonzero(record.turn == 0)[-1]]
    np.testing.assert_allclose(trajectory.step_rewards[place], record.outcome.extra[STEPS][0]["gain"])
    assert not at_last_tokens(record, {}).any()
    with pytest.raises(UserError, match="objective/ppo.gin"):
        method.table([ASKED])
    assert method.table([ASKED], group_baseline=False) == [(ASKED,)]
