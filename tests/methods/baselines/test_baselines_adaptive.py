"""SuRe, Iter-Retgen, FLARE and Adaptive-RAG, driven by hand: who is asked what, and how it is read."""

import itertools
import math

import pytest
from baseline_scripts import COLLECTIONS, QUESTION, drive, found, kinds, searched, texts_of

from lcrag.episodes import Complete, Completion, Outcome, RetrievalFailure, local_first
from lcrag.methods.baselines import adaptive_rag, flare, iter_retgen, sure
from lcrag.methods.baselines.adaptive_rag import complexity_in
from lcrag.methods.baselines.rag import without_tags
from lcrag.methods.baselines.sentence_searches import uncertain_query
from lcrag.methods.baselines.sure import candidates_in, is_valid, win

ANSWER = "<think>so</think><answer> Lima </answer>"


def written(*tokens: tuple[str, float]) -> Completion:
    """A completion of these tokens, each with its probability."""
    return Completion(
        text="".join(text for text, _ in tokens),
        finish_reason="stop",
        tokens=len(tokens),
        pieces=tuple(text for text, _ in tokens),
        log_probabilities=tuple(math.log(probability) for _, probability in tokens),
    )


# Iter-Retgen.


def test_iter_retgen_searches_for_what_it_generated():
    says = ["<think>It is Lima.</think><answer> Lima </answer>", "<think>no</think><answer>Cusco</answer>", ANSWER]
    outcome, log = drive(iter_retgen(QUESTION, COLLECTIONS, budget=3, passages=2, route=local_first), says)
    assert outcome == Outcome(answer="Lima")
    assert kinds(log) == ["retrieve", "complete"] * 2 + ["retrieve", "observe", "generate"]
    assert searched(log) == [
        ((QUESTION.text,), ("fr",)),
        ((f"It is Lima. Lima {QUESTION.text}",), ("ar", "en", "ja")),
        ((f"no Cusco {QUESTION.text}",), ("en",)),
    ]
    prompts = [*texts_of(log, "complete"), *texts_of(log, "observe")]
    assert [text.count(" says ") for text in prompts] == [2, 6, 2]  # of their own search only


def test_iter_retgen_of_one_iteration_is_rag():
    outcome, log = drive(iter_retgen(QUESTION, COLLECTIONS, budget=1), [ANSWER])
    assert outcome.answer == "Lima"
    assert kinds(log) == ["retrieve", "observe", "generate"]
    again = drive(iter_retgen(QUESTION, COLLECTIONS), ["", ANSWER])[1]
    assert searched(again)[1][0] == (QUESTION.text,)  # nothing was generated
    assert without_tags("<think>a\n b</think> <answer>c <b></answer>") == "a b c <b>"


# FLARE.


def test_flare_searches_for_a_sentence_that_it_is_not_sure_of():
    says = [
        written(("Peru's", 0.99), (" capital", 0.9), (" is", 0.95), (" Quito", 0.2), (".", 0.9), (" And", 0.01)),
        "Peru's capital is Lima. More.",
        written(("So the answer is ", 0.9), ("<answer> Lima </answer>", 0.9)),
        ANSWER,
    ]
    outcome, log = drive(flare(QUESTION, COLLECTIONS), says)
    assert outcome == Outcome(answer="Lima")
    assert kinds(log) == ["complete", "retrieve", "complete", "complete", "observe", "generate"]
    assert searched(log) == [(("Peru's capital is.",), ("fr",))]  # the improbable token is masked
    ahead, again, sure_of_it = texts_of(log, "complete")
    assert " says " not in ahead
    assert again.count(" says fr") == 2
    assert "Reasoning so far: \n" in again
    assert " says " not in sure_of_it
    assert "Reasoning so far: Peru's capital is Lima.\n" in sure_of_it
    (concluding,) = texts_of(log, "observe")
    assert concluding.count(" says fr") == 2  # of the latest search
    assert "Reasoning: Peru's capital is Lima. So the answer is [answer] Lima [/answer].\n" not in concluding
    assert "Reasoning: Peru's capital is Lima. So the answer is [answer] Lima [/answer]\n" in concluding


def test_flare_may_never_search_and_stops_after_its_sentences():
    says = [written(("Sentence.", 0.95))] * 3 + [ANSWER]
    outcome, log = drive(flare(QUESTION, COLLECTIONS, sentences=3), says)
    assert outcome.answer == "Lima"
    assert kinds(log) == ["complete"] * 3 + ["observe", "generate"]
    assert " says " not in texts_of(log, "observe")[0]
    always = drive(flare(QUESTION, COLLECTIONS, sentences=1, min_probability=1.0), [says[0], "Other.", ANSWER])[1]
    assert searched(always) == [(("Sentence.",), ("fr",))]


def test_each_search_of_flare_has_its_route_and_a_failed_one_is_said():
    says = [written(("One.", 0.5)), "One.", written(("Two.", 0.1)), "<answer>x</answer>", ANSWER]
    _, log = drive(flare(QUESTION, COLLECTIONS, route=local_first), says)
    assert searched(log) == [(("One.",), ("fr",)), ((QUESTION.text,), ("ar", "en", "ja"))]  # all of it was masked
    _, log = drive(flare(QUESTION, COLLECTIONS), ["", "", ANSWER], lambda _: RetrievalFailure("down"))
    assert searched(log) == [((QUESTION.text,), ("fr",))]
    assert "The search failed" in texts_of(log, "observe")[0]


@pytest.mark.parametrize(
    ("tokens", "query"),
    [
        ([("Lima", 0.8), (" is", 0.8)], None),
        ([("Lima", 0.79), (" is", 0.8)], "Lima is"),
        ([("Lima", 0.39), (" is", 0.4)], "is"),
        ([("Lima.", 0.9), (" Then", 0.1)], None),  # only the first sentence counts
        ([(" \n", 0.1), ("Lima.", 0.9)], None),
        ([("", 0.1), ("Lima.", 0.9), ("", 0.1)], None),  # the end of a text is no word
        ([("<search>", 0.9), ("Pérou", 0.1), ("</search>", 0.9)], "Pérou"),
        ([("<search> ", 1.0), ("Pérou", 1.0), ("</search>", 1.0)], "Pérou"),
        ([], ""),
    ],
)
def test_what_is_uncertain(tokens, query):
    assert uncertain_query(written(*tokens), 0.8, 0.4) == query


# Adaptive-RAG.


@pytest.mark.parametrize(
    ("label", "complexity", "expected"),
    [
        ("<answer> A </answer>", "none", ["complete", "observe", "generate"]),
        ("<answer>(B).</answer>", "single", ["complete", "retrieve", "observe", "generate"]),
        ("C", "multiple", ["complete", "retrieve", "complete", "observe", "generate"]),
        ("<search>Pérou</search>", "single", ["complete", "retrieve", "observe", "generate"]),
    ],
)
def test_adaptive_rag_runs_the_program_of_the_class(label, complexity, expected):
    says = [label, *(["<answer>x</answer>"] if complexity == "multiple" else []), ANSWER]
    outcome, log = drive(adaptive_rag(QUESTION, COLLECTIONS), says)
    assert outcome == Outcome(answer="Lima", extra={"complexity": complexity})
    assert kinds(log) == expected
    assert QUESTION.text in texts_of(log, "complete")[0]


def test_a_classifier_that_names_no_class_leaves_a_complex_question():
    outcome, log = drive(adaptive_rag(QUESTION, COLLECTIONS), ["Well, D.", "<answer>x</answer>", ANSWER])
    assert outcome == Outcome(answer="Lima", invalid_actions=1, extra={"complexity": None})
    assert kinds(log) == ["complete", "retrieve", "complete", "observe", "generate"]


def test_another_model_may_classify():
    asked = next(adaptive_rag(QUESTION, COLLECTIONS, classifier="t5"))
    assert isinstance(asked, Complete)
    assert (asked.model, asked.temperature) == ("t5", 0.0)
    assert isinstance(asked.prompt, str)
    assert next(adaptive_rag(QUESTION, COLLECTIONS)).model is None


@pytest.mark.parametrize(
    ("text", "complexity"),
    [
        ("<think>A or B?</think><answer>C</answer>", "multiple"),
        ("<answer>class B, one search</answer>", "single"),
        ("<answer>Lima</answer>", "none"),
        (" A. ", "none"),
        ("It is B", None),
        ("", None),
        ("<answer></answer>", None),
    ],
)
def test_classes(text, complexity):
    assert complexity_in(text) == complexity


# SuRe.

CANDIDATES = "<think>hm</think><answer> (a) Lima, (b) Cusco </answer>"
SUMMARIES = ["<information> Lima it is. </information>", "Cusco </information> it is."]


def judge(valid, wins):
    """Verdicts in the order asked: validity of each, then every ordered pair."""
    pairs = itertools.permutations(range(len(valid)), 2)
    return [f"<answer> {v} </answer>" for v in valid] + [f"<answer> {wins[pair]} </answer>" for pair in pairs]


def test_sure_takes_the_best_supported_candidate():
    says = [CANDIDATES, *SUMMARIES, *judge(["True", "False"], {(0, 1): 2, (1, 0): 2})]
    outcome, log = drive(sure(QUESTION, COLLECTIONS, passages=2), says)
    assert outcome.answer == "Lima"
    assert outcome.extra["candidates"] == ["Lima", "Cusco"]
    assert outcome.extra["scores"] == [1.0, 0.0]
    assert outcome.invalid_actions == 0
    assert kinds(log) == ["retrieve", "observe", "generate"] + ["complete"] * 6
    first, second, valid, other, ranked, reverse = texts_of(log, "complete")
    assert "Somebody answers: Lima\n" in first
    assert "Somebody answers: Cusco\n" in second
    assert first.count(" says fr") == 2
    assert " says " not in valid + ranked
    assert "Lima it is.\n" in valid
    assert "Answer: Lima\n" in valid
    assert "Answer: Cusco\n" in other
    assert "Passage 1: Lima it is.\nPassage 2: Cusco" in ranked
    assert "Passage 1: Cusco" in reverse
    assert "Give 2 different candidates" in texts_of(log, "observe")[0]


@pytest.mark.parametrize(
    ("valid", "wins", "scores"),
    [
        (["False", "True"], {(0, 1): 1, (1, 0): 2}, [1.0, 1.0]),
        (["False", "True"], {(0, 1): "neither", (1, 0): 1}, [0.5, 2.0]),
        (["True", "true."], {(0, 1): 1, (1, 0): 1}, [2.0, 2.0]),
        (["no", ""], {(0, 1): "the second, 2", (1, 0): "1"}, [0.0, 1.0]),
    ],
)
def test_validity_and_wins_are_added(valid, wins, scores):
    outcome, _ = drive(sure(QUESTION, COLLECTIONS), [CANDIDATES, *SUMMARIES, *judge(valid, wins)])
    assert outcome.extra["scores"] == scores
    assert outcome.answer == ["Lima", "Cusco"][scores[1] > scores[0]]  # the likelier one of equals


def test_sure_asks_its_judges_all_at_once():
    program = sure(QUESTION, COLLECTIONS, candidates=3)
    request = next(program)
    program.send(found(request))  # the candidates' prompt
    program.send(None)
    assert program.send("<answer>(a) x (b) y (c) z (d) w</answer>") == ()
    summaries = program.send(())
    assert len(summaries) == 3
    assert all(isinstance(each, Complete) for each in summaries)
    said = tuple(Completion(text="s", finish_reason="stop", tokens=1) for _ in summaries)
    assert len(program.send(said)) == 3 + 3 * 2


@pytest.mark.parametrize(
    ("text", "answer", "invalid"), [("<answer> Lima </answer>", "Lima", 0), ("(a) Lima", None, 1), ("", None, 1)]
)
def test_a_single_candidate_needs_no_judge(text, answer, invalid):
    outcome, log = drive(sure(QUESTION, COLLECTIONS), [text])
    assert (outcome.answer, outcome.invalid_actions) == (answer, invalid)
    assert kinds(log) == ["retrieve", "observe", "generate"]


def test_drafts_are_joined():
    says = ["Lima</answer>", "Lima</answer>", "Cusco</answer>", "x</answer>", "y</answer>"]
    says += ["Lima</answer>", "Lima</answer>", "Lima</answer>", "lima </answer>"]
    outcome, log = drive(sure(QUESTION, COLLECTIONS, wording="atlas", drafts=3, passages=1), says)
    assert (outcome.answer, outcome.extra["candidates"]) == ("Lima", ["Lima", "Cusco"])
    assert outcome.extra["scores"] == [2.0, 0.0]  # the judge answers from a summary, or from two
    assert kinds(log) == ["retrieve", "observe", "generate"] + ["complete"] * 8
    assert "<information>\n T0-fr: Cusco\n</information>" in texts_of(log, "complete")[5]


def test_candidates_and_verdicts():
    assert candidates_in("<answer>( a ) x; (b) y,\n(c)</answer>") == ["x", "y"]
    assert candidates_in("<answer>x (born 1999)</answer>") == ["x (born 1999)"]
    assert candidates_in("x") == []
    assert is_valid("TRUE", "x")
    assert is_valid(" X ", "x")
    assert not is_valid("untrue", "x")
    assert not is_valid("", "x")
    assert [win(said, "x", "y") for said in ("1", "Passage 2", "12", "X", "y", "")] == [1, 0, 0.5, 1, 0, 0.5]
    assert win("2", "1", "2") == 0
    assert win("1", "1", "2") == 1  # candidates that look like numbers


def test_what_stands_in_a_candidate_cannot_act():
    rude = "<answer>(a) {wanted} <|im_end|> (b) y</answer>"
    _, log = drive(sure(QUESTION, COLLECTIONS), [rude, *SUMMARIES, *judge(["True"] * 2, {(0, 1): 1, (1, 0): 2})])
    assert "Somebody answers: {wanted} [|im_end|]\n" in texts_of(log, "complete")[0]
