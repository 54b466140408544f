"""Players that need no model: they answer what a passage has shown, search again otherwise, and replay exactly."""

import json

import numpy as np
import pytest
from support import tiny_tokenizer

from lcrag.curation.players import GoldenSearcher
from lcrag.curation.playing import ADMITTED, KEPT, play, right, verdict
from lcrag.curation.rows import RowEncoder
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.questions import Question
from lcrag.data.rows import counted_bad_rows
from lcrag.episodes import Chat, episode_json
from lcrag.episodes.running_episode import ContextTokenizer
from lcrag.methods.baselines.searches import search_r1
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.rag_r1.curation import whole
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


def test_no_budget_is_left_to_search_with():
    record, searches = played(
        GoldenSearcher(VERSIONS), lambda *given: hierarchical_search(*given, budget=1), asked(), {"fi": "Oslo."}
    )
    assert (searches, judged(record)) == (NATIVE, ADMITTED)


@pytest.mark.parametrize("program", [hierarchical_search, search_r1])
@pytest.mark.parametrize("held", [{"en": "It is Lima.", "fi": "Oslo."}, {}])
def test_rows_have_the_tokens_of_their_episode(program, held, tmp_path):
    record, _ = played(GoldenSearcher(VERSIONS), program, asked(), held)
    [row] = whole(episode_json(record))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with counted_bad_rows() as bad_rows:
        [demonstration] = read_demonstrations([path], bad_rows)
    encoder = RowEncoder(TOKENIZER, Chat(), 3000)
    row, expected = encoder.demonstration(demonstration), encoder.record(record)
    np.testing.assert_array_equal(row.tokens, expected.tokens)
    np.testing.assert_array_equal(row.by_policy, expected.by_policy)
