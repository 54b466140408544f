"""The baselines, driven by hand: each asks for what its paper says, in its order, and reads its answer alike."""

import dataclasses
import functools
import itertools
import math
import re

import numpy as np
import program_scripts
import pytest
from program_scripts import finished
from support import tiny_tokenizer

from lcrag.curation.playing import misread, play
from lcrag.curation.rows import RowEncoder
from lcrag.data.questions import LCRL_LANGUAGES, Question
from lcrag.episodes import (
    RETHINK,
    TRY_AGAIN,
    Chat,
    Complete,
    Completion,
    Observe,
    Outcome,
    RetrievalFailure,
    Retrieve,
    all_at_once,
    local_first,
)
from lcrag.episodes.chat import ContextTokenizer
from lcrag.episodes.programs import intercepted
from lcrag.episodes.searches import information
from lcrag.errors import UserError
from lcrag.methods.baselines import (
    adaptive_rag,
    d_rag,
    direct_inference,
    flare,
    ircot,
    iter_retgen,
    rag,
    search_o1,
    search_r1,
    step_search,
    sure,
)
from lcrag.methods.baselines.d_rag import NO_EVIDENCE, GoldenArguments
from lcrag.methods.baselines.rag import candidates_in
from lcrag.methods.baselines.searches import (
    REPEATED,
    STEPS,
    SearchMemory,
    next_query,
    search_keys,
    step_search_reward,
    tf_idf_cosines,
    uncertain_query,
)
from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.r_search.program import r_search
from lcrag.methods.rag_r1.program import rag_r1
from lcrag.retrieval.passages import Hit
from lcrag.train.method import Method, at_last_tokens

QUESTION = Question(id="7", dataset="d", language="fr", text="Quelle est la capitale du Pérou ?", answers=("Lima",))
COLLECTIONS = ("ar", "en", "fr", "ja")
TOKENIZER = tiny_tokenizer()


def hit(query: str, language: str, rank: int = 1) -> Hit:
    text = f"{query} says {language}"
    return Hit(id=f"{language}-{rank}", title=f"T{rank}-{language}", text=text, score=1.0, language=language)


def found(request: Retrieve, missing=()) -> list:
    ranks = range(request.passages)
    return [
        [[] if code in missing else [hit(query, code, rank) for rank in ranks] for code in request.languages]
        for query in request.queries
    ]


def drive(program, says, retrieve=found, question=QUESTION, **settings):
    """Plays a program with settings: `says` are the policy's and the completer's texts, or completions, in order.

    Returns its outcome, and (kind of a request, the prompt or observation shown, else the request) for each.
    """
    outcome, requests = program_scripts.drive(program(question, COLLECTIONS, **settings), says, retrieve)
    log = []
    for request in requests:
        shown = {Observe: "text", Complete: "prompt"}.get(type(request))
        value = getattr(request, shown) if shown else request
        value = value.fit(TOKENIZER, 10_000) if shown and not isinstance(value, str) else value
        log.append((type(request).__name__.lower(), value))
    return outcome, log


def outline(log) -> list[str]:
    """What was asked for: "LANGUAGES: QUERY" of a search, else the kind of the request and its number of passages."""
    return [
        f"{' '.join(value.languages)}: {value.queries[0]}" if kind == "retrieve"
        else f"{kind} {value.count(' says ') if isinstance(value, str) else ''}".strip()
        for kind, value in log
    ]  # fmt: skip


def texts_of(log, wanted: str) -> list[str]:
    return [text for kind, text in log if kind == wanted]


# --- Programs ---

ASKED = QUESTION.text
SEARCH, ANSWER = "<think>hm</think><search> Pérou </search>", "<answer> Lima </answer>"


def test_direct_inference_never_searches():
    outcome, log = drive(direct_inference, [f"<think>hm</think> {ANSWER}"])
    assert outcome == Outcome(answer="Lima")
    assert outline(log) == ["observe 0", "generate"]
    assert all(text in log[0][1] for text in (ASKED, "must be in French", "<answer> Pékin </answer>"))
    assert log[1][1].stop == ("</answer>",)
    assert drive(direct_inference, ["Lima"])[0] == Outcome(answer=None, invalid_actions=1)


def test_rag_reads_what_the_question_finds():
    outcome, log = drive(rag, [ANSWER])
    assert outcome == Outcome(answer="Lima")
    assert outline(log) == [f"fr: {ASKED}", "observe 3", "generate"]
    assert log[1][1].index("</information>") < log[1][1].index("Question: Quelle")
    everywhere = drive(rag, [ANSWER], route=all_at_once, passages=1)[1]
    assert outline(everywhere)[:2] == [f"fr ar en ja: {ASKED}", "observe 4"]


def test_in_short_the_policy_notes_a_line_and_then_must_answer():
    outcome, log = drive(rag, [" Pérou: Lima\n", " Lima</answer>"], wording="atlas", passages=1)
    assert outcome == Outcome(answer="Lima")
    assert texts_of(log, "observe") == [
        f"{ASKED}\n<information>\n T0-fr: {ASKED} says fr\n</information>\n", "<answer>"
    ]  # fmt: skip
    assert [request.stop for kind, request in log if kind == "generate"] == [("\n", "</answer>"), ("</answer>",)]
    for says, answer in ((["<answer> Lima</answer>"], "Lima"), ([" ?\n", " </answer>"], None)):
        assert drive(direct_inference, says, wording="atlas")[0].answer == answer


def test_iter_retgen_searches_for_what_it_generated():
    says = ["<think>It is\n Lima.</think><answer> Lima </answer>", "<answer>Cusco</answer> <b>", ANSWER]
    outcome, log = drive(iter_retgen, says, budget=3, passages=2, route=local_first)
    assert outcome == Outcome(answer="Lima")
    assert outline(log) == [
        *(f"fr: {ASKED}", "complete 2"),  # each prompt has the passages of its own search only
        *(f"ar en ja: It is Lima. Lima {ASKED}", "complete 6"),
        *(f"en: Cusco <b> {ASKED}", "observe 2", "generate"),
    ]
    assert outline(drive(iter_retgen, ["", ANSWER])[1])[2] == f"fr: {ASKED}"  # nothing was generated


def test_ircot_searches_for_each_sentence_of_its_thought():
    says = [
        "Peru lies in South America. Its capital is Lima.",
        "Its capital is Lima. And more.",
        "So the answer is <answer> Lima </answer>.",
        ANSWER,
    ]
    outcome, log = drive(ircot, says, passages=1)
    assert outcome == Outcome(answer="Lima")
    assert outline(log) == [
        *(f"fr: {ASKED}", "complete 1", "fr: Peru lies in South America.", "complete 2"),
        *("fr: Its capital is Lima.", "complete 3", "observe 3", "generate"),
    ]
    assert "Reasoning so far: Peru lies in South America. Its capital is Lima.\n" in texts_of(log, "complete")[2]
    assert "No passages were found" in texts_of(drive(ircot, [ANSWER], budget=0)[1], "observe")[0]


def test_ircot_keeps_so_many_passages_and_each_search_adds_room_for_its_own():
    says = [f"Thought {number}." for number in range(4)] + [ANSWER]
    again = drive(ircot, ["Thought 0."] * 3 + [ANSWER], budget=3, passages=2)[1]
    assert outline(again)[-2:] == ["observe 4", "generate"]  # what is found twice is shown once
    _, log = drive(ircot, says, budget=4, passages=2, max_passages=5, route=local_first)
    searches = [f"fr: {ASKED}", "ar en ja: Thought 0.", "en: Thought 1.", "en: Thought 2."]
    assert outline(log)[:8:2] == searches
    assert outline(log)[1:8:2] == ["complete 2", "complete 5", "complete 5", "complete 5"]
    first = information(found(Retrieve((ASKED,), ("fr",), 2)), "search_r1", 10_000).fit(TOKENIZER, 10_000)
    _, log = drive(ircot, says[1:], budget=3, passages=2, observation_tokens=len(TOKENIZER.encode(first)))
    assert outline(log)[1::2] == ["complete 2", "complete 4", "complete 6", "generate"]
    assert outline(log)[-2] == "observe 6"


@pytest.mark.parametrize(
    ("text", "query", "concluded"),
    [
        ("Lima is a city. It is big.", "Lima is a city.", False),
        ("リマは都市です。大きいです。", "リマは都市です。", False),
        ("It cost 3.5 dollars", "It cost 3.5 dollars", False),
        ("one line\nanother", "one line", False),
        (" <search> capital of Peru</search>", "capital of Peru", False),
        ("So it is <answer> Dr. No </answer>", "So it is <answer> Dr.", True),
        (" \n", "", True),
    ],
)
def test_the_first_sentence_is_the_thought(text, query, concluded):
    assert next_query(text) == (query, concluded)


def written(*tokens: tuple[str, float]) -> Completion:
    """A completion of these tokens, each with its probability."""
    pieces = tuple(text for text, _ in tokens)
    logs = tuple(math.log(probability) for _, probability in tokens)
    completion = Completion(text="".join(pieces), finish_reason="stop", tokens=len(tokens))
    return dataclasses.replace(completion, pieces=pieces, log_probabilities=logs)


def test_flare_searches_for_a_sentence_that_it_is_not_sure_of():
    says = [
        written(("Peru's", 0.99), (" capital", 0.9), (" is", 0.95), (" Quito", 0.2), (".", 0.9), (" And", 0.01)),
        "Peru's capital is Lima. More.",
        written(("So the answer is ", 0.9), ("<answer> Lima </answer>", 0.9)),
        ANSWER,
    ]
    outcome, log = drive(flare, says)
    assert outcome == Outcome(answer="Lima")
    assert outline(log) == [
        *("complete 0", "fr: Peru's capital is.", "complete 2"),  # the improbable token is masked
        *("complete 0", "observe 2", "generate"),
    ]
    assert "Reasoning so far: Peru's capital is Lima.\n" in texts_of(log, "complete")[2]
    concluding = texts_of(log, "observe")[0]
    assert "Reasoning: Peru's capital is Lima. So the answer is [answer] Lima [/answer]\n" in concluding


def test_flare_may_never_search_or_always_and_each_search_has_its_route():
    says = [written(("Sentence.", 0.95))] * 3 + [ANSWER]
    assert outline(drive(flare, says, sentences=3)[1]) == ["complete 0"] * 3 + ["observe 0", "generate"]
    always = drive(flare, [says[0], "Other.", ANSWER], sentences=1, min_probability=1.0)[1]
    assert outline(always) == ["complete 0", "fr: Sentence.", "complete 2", "observe 2", "generate"]
    says = [written(("One.", 0.5)), "One.", written(("Two.", 0.1)), "<answer>x</answer>", ANSWER]
    routed = outline(drive(flare, says, route=local_first)[1])
    assert routed[1::3] == ["fr: One.", f"ar en ja: {ASKED}", "generate"]  # all of the second was masked


@pytest.mark.parametrize(
    ("tokens", "query"),
    [
        ([("Lima", 0.8), (" is", 0.8)], None),
        ([("Lima", 0.39), (" is", 0.4)], "is"),
        ([("Lima.", 0.9), (" Then", 0.1)], None),  # only the first sentence counts
        ([(" \n", 0.1), ("Lima.", 0.9)], None),
        ([("<search>", 0.9), ("Pérou", 0.1), ("</search>", 0.9)], "Pérou"),
        ([], ""),
    ],
)
def test_what_is_uncertain(tokens, query):
    assert uncertain_query(written(*tokens), 0.8, 0.4) == query


@pytest.mark.parametrize(
    ("said", "complexity"),
    [
        ("<answer> A </answer>", "none"),
        ("<answer>class C, many searches</answer>", "multiple"),
        ("<search>Lima</search>", "single"),  # a policy that does not classify reveals what it needs
        ("<answer>Lima</answer>", "none"),
        (" A. ", "none"),
        ("It is B", None),
    ],
)
def test_adaptive_rag_runs_the_program_of_the_class(said, complexity):
    retrieving = {"none": [], "single": [f"fr: {ASKED}"]}.get(complexity, [f"fr: {ASKED}", "complete 3"])
    thoughts = ["<answer>x</answer>"] * retrieving.count("complete 3")
    outcome, log = drive(adaptive_rag, [said, *thoughts, ANSWER])
    assert outcome == Outcome(answer="Lima", invalid_actions=int(complexity is None), extra={"complexity": complexity})
    assert outline(log) == ["complete 0", *retrieving, f"observe {3 * bool(retrieving)}", "generate"]
    asked = next(adaptive_rag(QUESTION, COLLECTIONS, classifier="t5"))
    assert (asked.model, asked.temperature) == ("t5", 0.0)
    with pytest.raises(UserError, match=f"'{complexity or 'multiple'}'"):
        drive(adaptive_rag, [said, ANSWER], programs={})


NOTES = "Long analysis. <information> Lima is it. </information>"


def test_search_o1_reads_documents_in_a_context_of_their_own():
    second = "<think>then</think><search>Lima</search>"
    outcome, log = drive(search_o1, [SEARCH, NOTES, second, "none", ANSWER])
    assert outcome == Outcome(answer="Lima")
    search = ["complete 3", "observe 0", "generate"]
    assert outline(log) == ["observe 0", "generate", "fr: Pérou", *search, "fr: Lima", *search]
    (documents, later), (opening, refined, forgotten) = texts_of(log, "complete"), texts_of(log, "observe")
    assert all(text in documents for text in ("Pérou says fr", "Current query: Pérou", ASKED))
    assert "[think]hm[/think][search] Pérou [/search]\nLima is it.\n[think]then[/think]" in later
    assert refined.strip() == "<information>Lima is it.\n</information>"
    assert forgotten.strip() == "<information>none\n</information>"  # a forgotten tag loses nothing
    assert "at most 5 times" in opening


def test_search_o1_does_not_search_twice_for_a_query_in_the_same_collections():
    outcome, log = drive(search_o1, [SEARCH, NOTES, SEARCH, ANSWER])
    assert outcome == Outcome(answer="Lima", invalid_actions=1)
    assert [line for line in outline(log) if "Pérou" in line] == ["fr: Pérou"]
    assert texts_of(log, "observe")[-1] == REPEATED
    elsewhere = outline(drive(search_o1, [SEARCH, NOTES, SEARCH, NOTES, ANSWER], route=local_first)[1])
    assert [line for line in elsewhere if "Pérou" in line] == ["fr: Pérou", "ar en ja: Pérou"]
    # A long chain keeps its ends.
    says = [text for number in range(4) for text in (f"<search>q{number}</search>", f"note{number}")]
    last = texts_of(drive(search_o1, [*says, ANSWER])[1], "complete")[-1]
    kept = ("[search]q0[/search]", "...", "note1", "[search]q2[/search]", "note2", "[search]q3[/search]")
    assert "Reasoning so far: " + "\n".join(kept) in last


def test_d_rag_argues_from_each_language_and_weighs():
    says = [f"<information> argument {number} </information>" for number in range(3)] + [f"<think>so</think>{ANSWER}"]
    outcome, log = drive(d_rag, says, lambda r: found(r, missing=("en",)), passages=2)
    assert outcome == Outcome(answer="Lima")
    assert outline(log) == [f"fr ar en ja: {ASKED}", *["complete 2"] * 3, "observe 0", "generate"]
    languages = (("fr", "French"), ("ar", "Arabic"), ("ja", "Japanese"))
    for text, (code, language) in zip(texts_of(log, "complete"), languages, strict=True):
        assert f"passages in {language}" in text
        assert text.count(f" says {code}") == 2
    weighing = texts_of(log, "observe")[0]
    assert "Argument from French passages (T0-fr; T1-fr): argument 0\n" in weighing
    assert "Argument from Japanese passages (T0-ja; T1-ja): argument 2\n" in weighing


def test_every_argument_is_weighed_whole():
    """Thirteen of 80 tokens, in the dialogue and in the rows that it is fine-tuned on."""
    argument = " ".join(f"Lima is the capital, says source {number}." for number in range(40))
    argument = TOKENIZER.decode(TOKENIZER.encode(argument)[:79]) + " conclusion"
    question = dataclasses.replace(QUESTION, language="en")

    def searched(queries, languages, k):
        return [[hit(query, code)] for query, code in zip(queries, languages, strict=True)]

    def writer(asked, turns, request):
        return f"<information>{argument}</information>" if isinstance(request, Complete) else ANSWER

    played = [(question, d_rag(question, LCRL_LANGUAGES))]
    [record] = play(played, writer, searched, CONTEXT, context=9000)
    assert len(re.findall(r"Argument from .* conclusion\n", record.prompt)) == len(LCRL_LANGUAGES) == 13
    row = RowEncoder(TOKENIZER, Chat(), 9000).record(record)
    assert TOKENIZER.decode(row.tokens).count(" conclusion\n") == 13


@pytest.mark.parametrize("program", [rag, ircot, d_rag])
@pytest.mark.parametrize("failed", [True, False])
def test_without_passages_the_policy_still_answers(program, failed):
    retrieve = (lambda _: RetrievalFailure("down")) if failed else (lambda r: found(r, missing=COLLECTIONS))
    outcome, log = drive(program, [" \n", ANSWER] if program is ircot else [ANSWER], retrieve)
    assert outcome.answer == "Lima"
    shown = "The search failed" if failed and program is rag else "No passages were found"
    assert shown in texts_of(log, "observe")[0]


CANDIDATES = "<think>hm</think><answer> (a) Lima, (b) Cusco </answer>"
SUMMARIES = ["<information> Lima it is. </information>", "Cusco </information> it is."]


def judge(valid, wins):
    """Verdicts in the order asked: validity of each, then every ordered pair."""
    pairs = itertools.permutations(range(len(valid)), 2)
    return [f"<answer> {v} </answer>" for v in valid] + [f"<answer> {wins[pair]} </answer>" for pair in pairs]


def test_sure_takes_the_best_supported_candidate():
    says = [CANDIDATES, *SUMMARIES, *judge(["True", "False"], {(0, 1): 2, (1, 0): 2})]
    outcome, log = drive(sure, says, passages=2)
    extra = {"candidates": ["Lima", "Cusco"], "summaries": ["Lima it is.\n", "Cusco </information> it is.\n"]}
    assert outcome == Outcome(answer="Lima", extra=extra | {"scores": [1.0, 0.0]})
    judging = ["complete 0"] * 4
    assert outline(log) == [f"fr: {ASKED}", "observe 2", "generate", "complete 2", "complete 2", *judging]
    first, second, valid, other, ranked, reverse = texts_of(log, "complete")
    assert "Somebody answers: Lima\n" in first and "Somebody answers: Cusco\n" in second
    assert "Lima it is.\n" in valid and "Answer: Lima\n" in valid and "Answer: Cusco\n" in other
    assert "Passage 1: Lima it is.\nPassage 2: Cusco" in ranked and "Passage 1: Cusco" in reverse


@pytest.mark.parametrize(
    ("valid", "wins", "scores"),
    [
        (["False", "True"], {(0, 1): 1, (1, 0): 2}, [1.0, 1.0]),
        (["False", "True"], {(0, 1): "neither", (1, 0): 1}, [0.5, 2.0]),
        (["True", "true."], {(0, 1): 1, (1, 0): 1}, [2.0, 2.0]),
        ([" LIMA ", "TRUE"], {(0, 1): "cusco", (1, 0): "Cusco"}, [1.0, 2.0]),  # a judge may name the candidate
    ],
)
def test_validity_and_wins_are_added(valid, wins, scores):
    outcome, _ = drive(sure, [CANDIDATES, *SUMMARIES, *judge(valid, wins)])
    assert outcome.extra["scores"] == scores
    assert outcome.answer == ["Lima", "Cusco"][scores[1] > scores[0]]  # the one named first of equals
    numbers = ["<answer>(a) 2 (b) 1</answer>", *SUMMARIES, *judge(["True", "True"], {(0, 1): 2, (1, 0): 2})]
    assert drive(sure, numbers)[0].extra["scores"] == [2.0, 1.0]  # judged by name


@pytest.mark.parametrize(("text", "answer", "invalid"), [("<answer> Lima </answer>", "Lima", 0), ("(a) Lima", None, 1)])
def test_a_single_candidate_needs_no_judge(text, answer, invalid):
    outcome, log = drive(sure, [text], passages=2)
    assert (outcome.answer, outcome.invalid_actions) == (answer, invalid)
    assert outline(log) == [f"fr: {ASKED}", "observe 2", "generate"]


def test_drafts_of_candidates_are_joined():
    says = ["Lima</answer>", "Lima</answer>", "Cusco</answer>", "x</answer>", "y</answer>"]
    says += ["Lima</answer>", "Lima</answer>", "Lima</answer>", "lima </answer>"]
    outcome, log = drive(sure, says, wording="atlas", drafts=3, passages=1)
    assert (outcome.answer, outcome.extra["candidates"]) == ("Lima", ["Lima", "Cusco"])
    assert outcome.extra["scores"] == [2.0, 0.0]  # the judge answers from a summary, or from two
    assert len(texts_of(log, "complete")) == 8
    assert "<information>\n T0-fr: Cusco\n</information>" in texts_of(log, "complete")[5]
    assert candidates_in("<answer>( a ) x; (b) y,\n(c)</answer>") == ["x", "y"]
    assert candidates_in("<answer>x (born 1999)</answer>") == ["x (born 1999)"]


@pytest.mark.parametrize(
    ("program", "says", "batches"),
    [
        (d_rag, ["a", "b", "c", "d", ANSWER], [4]),
        (functools.partial(sure, candidates=3), ["<answer>(a) x (b) y (c) z (d) w</answer>", *"sss", *"vvvwwwwww"],
         [0, 3, 3 + 3 * 2]),
    ],
)  # fmt: skip
def test_what_does_not_depend_on_each_other_is_asked_together(program, says, batches):
    sizes = []

    def noting(requests):
        sizes.extend([len(requests)] if isinstance(requests, tuple) else [])
        return (yield requests)

    drive(lambda *asked: intercepted(program(*asked), noting), says)
    assert sizes == batches


@pytest.mark.parametrize(
    ("program", "settings", "correction"),
    [
        (hierarchical_search, {}, RETHINK),
        (hierarchical_search, {"prompt": "atlas"}, RETHINK),
        (search_r1, {}, TRY_AGAIN),
        (search_r1, {"prompt": "atlas"}, RETHINK),
        *((each, {}, TRY_AGAIN) for each in (r_search, rag_r1, globalrag)),
        *((each, {"wording": "atlas"}, RETHINK) for each in (r_search, rag_r1, globalrag)),
    ],
)
def test_each_methods_own_sentence_answers_an_invalid_action_on_lines_of_its_own(program, settings, correction):
    _, requests = program_scripts.drive(program(QUESTION, ("fr", "en"), **settings), ["hm", ANSWER])
    assert requests[2] == Observe(correction)
    assert correction == f"\n{correction.strip()}\n"


# --- Baselines that are trained ---

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
    record, arguments = argued("atlas")  # quotes whole passages
    assert arguments == [f" Pérou (pays): {PASSAGES[code]}\n" for code in ("fr", "ja")] + [" ?\n"]
    assert (record.turns[-1].text, record.outcome.answer) == ("<answer> Lima</answer>", "Lima")


@pytest.mark.parametrize(("gold", "supported"), [("pays", [True, False, False]), ("no", [False, False, False])])
def test_titles_and_verdicts_are_no_evidence(gold, supported):
    question = dataclasses.replace(QUESTION, answers=(gold,))
    _, arguments = argued("full", question, questions=(question,))
    assert ["Extraction" in argument for argument in arguments] == supported
    titled = dataclasses.replace(QUESTION, answers=("Pérou (pays)",))
    assert argued("atlas", titled, questions=(titled,))[1] == [" ?\n"] * 3


# StepSearch.

LIMA, RIMAC = "Lima is the capital of Peru.", "The Rimac flows through Lima."
DECOMPOSITION = [
    {"question": "What is the capital of Peru?", "answer": "Lima", "support": None},
    {"question": "Which river flows through #1?", "answer": "Rimac", "support": None},
]
KNOWN = {"golden_passages": [LIMA, RIMAC], "decomposition": DECOMPOSITION}
ANNOTATED = dataclasses.replace(QUESTION, answers=("Rimac",), extra=KNOWN)


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
    outcome, _ = drive(step_search, says, question=ANNOTATED)
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
    """F1 of the answer, plus 0.618 of the sub-questions' best F1; the searches' rewards stand apart."""
    first = {"turn": 0, "query": "What is the capital of Peru?", "gain": 0.5, "redundancy": 0.0}
    again = {"turn": 1, "query": "capital through Peru", "gain": 0.0, "redundancy": 1.0}
    values, turns = scored(["Rimac", "Oslo", None], [[first, again], [], [first]])
    np.testing.assert_allclose(values["search_keys"], [0.5, 0, 0.5])
    np.testing.assert_allclose(values["total"], [1 + 0.618 / 2, 0, -1])
    np.testing.assert_allclose(values[STEPS], [-0.5, 0, 0])
    assert turns == [{0: 0.5, 1: -1.0}, {}, {}], "without an answer no search is rewarded"
    keys = [["capital Peru", "Peru capital"]]
    assert search_keys(KNOWN | {"search_keys": keys}) == keys
    _, unpenalised = scored(["Rimac"], [[first, again]], redundancy_penalty=False, step_weight=2.0)
    assert unpenalised == [{0: 1.0, 1: 0.0}]


def test_a_search_is_rewarded_at_its_last_token_and_only_with_a_critic():
    texts = iter(["<search> Peru</search>", "<answer> Rimac</answer>"])
    program = step_search(ANNOTATED, ("fr",), wording="atlas")
    [record] = play([(ANNOTATED, program)], lambda *_: next(texts), lambda *_: hits(LIMA)[0], CONTEXT, context=600)
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
        method.table([ANNOTATED])
    assert method.table([ANNOTATED], group_baseline=False) == [(ANNOTATED,)]
