"""Players that need no model: they answer what a passage has shown, search again otherwise, and replay exactly."""

import dataclasses

import pytest
from support import tiny_tokenizer

from lcrag.curation.players import Evidence, GoldenSearcher, Hop, evidence_in
from lcrag.curation.playing import ADMITTED, KEPT, play, right, verdict
from lcrag.data.questions import Question
from lcrag.episodes import Chat
from lcrag.episodes.chat import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.baselines.searches import search_r1
from lcrag.methods.globalrag.golden import GoldenPlanner
from lcrag.methods.globalrag.plans import with_decomposition
from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.r_search.program import r_search
from lcrag.methods.rag_r1.program import rag_r1
from lcrag.methods.translate_r1.oracles import GoldenTranslator
from lcrag.methods.translate_r1.program import translate_r1
from lcrag.models.translators import TranslationMemory
from lcrag.retrieval import Hit

TOKENIZER = tiny_tokenizer()
LANGUAGES = ("fi", "en", "ru")


def asked(language="fi", **extra):
    texts = {"fi": ("Perun pääkaupunki?", "Lima"), "en": ("Capital of Peru?", "Lima"), "ru": ("Столица Перу?", "Лима")}
    text, answer = texts[language]
    return Question(id="1", dataset="d", language=language, text=text, answers=(answer,), extra=extra)


VERSIONS = [asked(language) for language in LANGUAGES]


def hit(text, language="en"):
    return Hit(id="1", title="Peru", text=text, score=1.0, language=language)


def played(player, program, question, held):
    """Plays with collections that hold a text in each language; returns the record and the queries, with languages."""
    asked = []

    def search(queries, languages, k):
        asked.extend(zip(queries, languages, strict=True))
        return [[hit(held[code], code)] if code in held else [] for code in languages]

    context = ContextTokenizer(TOKENIZER, Chat())
    [record] = play([(question, program(question, LANGUAGES))], player, search, context, context=3000)
    return record, asked


def judged(record):
    return verdict(record, right([record], "exact_match")[0])


OWN, ENGLISH = asked().text, asked("en").text
NATIVE, OTHERS, IN_ENGLISH = [(OWN, "fi")], [(OWN, "en"), (OWN, "ru")], [(ENGLISH, "en")]


@pytest.mark.parametrize(
    ("program", "held", "searches", "verdict"),
    [
        (hierarchical_search, {"fi": "Meri. Se on Lima. Vuori."}, NATIVE, KEPT),
        (hierarchical_search, {"fi": "Oslo.", "ru": "Это Лима."}, NATIVE + OTHERS, KEPT),  # by the second route only
        (hierarchical_search, {"fi": "Limassa.", "en": "Oslo."}, NATIVE + OTHERS + IN_ENGLISH, ADMITTED),  # nowhere
        (hierarchical_search, {}, NATIVE + OTHERS + IN_ENGLISH, ADMITTED),
        (search_r1, {"en": "Lima is the capital."}, [(OWN, "en")], KEPT),
        (search_r1, {"fi": "Lima."}, [(OWN, "en"), (ENGLISH, "en")], ADMITTED),
    ],
)
def test_it_searches_until_a_passage_holds_the_answer(program, held, searches, verdict):
    player = GoldenSearcher(VERSIONS, repeats=program is hierarchical_search)
    record, asked_for = played(player, program, asked(), held)
    assert asked_for == searches
    assert judged(record) == verdict
    assert record.outcome.answer == ("Lima" if verdict == KEPT else "tuntematon")
    assert record.outcome.invalid_actions == 0
    assert all(turn.text.startswith("<think> ") for turn in record.turns if turn.by == "policy")


def test_only_the_golden_passage_counts_where_it_is_known():
    known = asked(golden_passages=["Meri. Pääkaupunki on Lima."])
    player = GoldenSearcher([known])
    for text, expected in (("Pääkaupunki on Lima.", KEPT), ("Lima on peruna.", ADMITTED)):
        record, _ = played(player, hierarchical_search, known, {"fi": text})
        assert judged(record) == expected


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("Doc 2(Title: Victoria (Australia)) Sea. Labor won.", "Doc 2"),
        ("Doc 12: Sea. Labor won.", "Doc 12"),
        ('(Title: "Victoria (Australia)") Sea. Labor won.', "a passage"),
        ('{"query": ["q"], "documents": ["Doc 1: Sea.\\nDoc 2: Sea. Labor won."]}', "Doc 2"),
        ('{\n  "query": ["q"],\n  "documents": ["Doc 1: Sea.\\nDoc 2: Sea. Labor won."]\n}', "Doc 2"),
    ],
)
@pytest.mark.parametrize("tag", ["information", "observation"])
def test_evidence_is_a_sentence_as_every_program_shows_it(line, place, tag):
    hop = Hop(queries=(), golds=("labor",))
    assert evidence_in([f"<{tag}>\n{line}\n</{tag}>"], hop) == Evidence("Labor won.", place)
    assert evidence_in([line, "Labor won."], hop) is None  # outside of a block


LEFT, RIGHT = "Peru, the state", "Chile"
COMPARED = Question(
    id="2", dataset="d", language="en", text=f"Is {LEFT} or {RIGHT} larger?", answers=("no",),
    extra={"type": "comparison", "supporting_facts": [[LEFT, 0], [RIGHT, 1], [LEFT, 2]]},
)  # fmt: skip
STEPS = [
    {"question": "Peru >> capital", "answer": "Lima", "support": None},
    {"question": "Who founded #1?", "answer": "Pizarro", "support": None},
]
CHAIN = Question(
    id="3", dataset="d", language="en", text="Who founded Peru's capital?", answers=("Pizarro", "Don Francisco"),
    extra={"decomposition": STEPS},
)  # fmt: skip
CHAIN = with_decomposition(CHAIN)
FACTS = dataclasses.replace(CHAIN, extra={"evidences": [["Peru", "capital", "Lima"], ["Lima", "founder", "Pizarro"]]})
TEXTS = {"Peru": "In Peru, the capital is Lima. It is big.", "Lima": "Lima is old. It was founded by Pizarro.",
         LEFT: "A state.", RIGHT: "A state too."}  # fmt: skip


def library(player, program, question, texts):
    """Plays with one collection, which finds the passages whose titles are in a query."""
    asked = []

    def search(queries, languages, k):
        asked.append(list(queries))
        return [[Hit(id=t, title=t, text=texts[t], score=1.0, language="en") for t in texts if t in q] for q in queries]

    context = ContextTokenizer(TOKENIZER, Chat())
    [record] = play([(question, program(question, ("en",)))], player, search, context, context=6000)
    return record, asked


ALONE = {"repeats": False}
PROGRAMS = {
    "search_r1": (search_r1, lambda question: GoldenSearcher([question], **ALONE)),
    "r_search": (r_search, lambda question: GoldenSearcher([question], **ALONE, thinks=False, evidence=True)),
    "rag_r1": (rag_r1, lambda question: GoldenSearcher([question], **ALONE, queries=3)),
    "globalrag": (globalrag, lambda question: GoldenPlanner([question])),
}


@pytest.mark.parametrize(
    ("name", "question", "queries"),
    [
        ("search_r1", CHAIN, [["Peru capital"], ["Who founded Lima?"]]),
        ("r_search", FACTS, [["Peru capital"], ["Lima founder"]]),
        ("globalrag", CHAIN, [["Peru capital"], ["Who founded Lima?"]]),
        ("search_r1", COMPARED, [[LEFT], [RIGHT]]),
        ("rag_r1", COMPARED, [[LEFT, RIGHT]]),
        ("rag_r1", CHAIN, [["Peru capital"], ["Who founded Lima?"]]),
    ],
)
def test_what_answers_need_is_searched_for_in_turn_or_in_parallel(name, question, queries):
    program, player = PROGRAMS[name]
    record, asked = library(player(question), program, question, TEXTS)
    assert asked == queries
    assert judged(record) == KEPT
    assert record.outcome.answer == question.answers[0]
    if name == "r_search":
        assert record.outcome.extra["evidence"] == "In Peru, the capital is Lima.\nIt was founded by Pizarro."
    if name == "globalrag":
        assert record.outcome.extra["well_formed"]
        assert record.outcome.extra["sub_answers"] == {"Q1": "Lima", "Q2": "Pizarro"}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("texts", [{}, {"Peru": TEXTS["Peru"]}, {"Lima": TEXTS["Lima"]}])
@pytest.mark.parametrize("budget", [1, 2, 4])
def test_nothing_is_answered_that_no_passage_holds(name, texts, budget):
    program, player = PROGRAMS[name]
    record, asked = library(player(CHAIN), lambda *given: program(*given, budget=budget), CHAIN, texts)
    assert asked
    assert (judged(record), record.outcome.answer, record.outcome.invalid_actions) == (ADMITTED, "unknown", 0)
    if name == "globalrag":
        assert record.outcome.extra["well_formed"]


def test_a_query_within_an_earlier_one_is_asked_as_well():
    record, asked = library(PROGRAMS["rag_r1"][1](FACTS), rag_r1, FACTS, {})
    assert (asked, judged(record)) == ([["Peru capital"], ["Peru"], [FACTS.text]], ADMITTED)


def test_a_question_that_does_not_name_its_facts_is_searched_for_itself():
    record, asked = library(GoldenSearcher([FACTS]), search_r1, dataclasses.replace(FACTS, text="Who was it?"), {})
    assert (asked, judged(record)) == ([["Who was it?"]], ADMITTED)


def test_a_player_calls_the_translator():
    versions = [
        Question(id="4", dataset="d", language=language, text=text, answers=("7",), extra={"domain": "mathematics"})
        for language, text in (("fi", "Paljonko on 3 ja 4?"), ("en", "What is 3 and 4?"))
    ]
    programs = [(question, translate_r1(question)) for question in versions]
    context = ContextTokenizer(TOKENIZER, Chat())
    translator = TranslationMemory(versions)
    records = play(programs, GoldenTranslator(versions), lambda *_: [], context, context=6000, translator=translator)
    assert [record.outcome.counts["tool_calls"] for record in records] == [1, 0]
    assert "What is 3 and 4?" in records[0].turns[1].text
    assert right(records, "mathematics") == [True, True]


def test_a_plan_is_needed():
    with pytest.raises(UserError, match="d/1/fi"):
        GoldenPlanner([asked()])
