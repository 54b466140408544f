"""Which golds passages hold, against a plain search passage by passage, and what an audit makes of it."""

import dataclasses
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.evaluation import answerable
from lcrag.evaluation.answerable import ROWS, Audited, Golds, held_golds, holds, strata
from lcrag.retrieval import Passage
from lcrag.rewards.text import normalise
from lcrag.runs.files import write_json_lines

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI")
TEXTS = st.text("ab1 A.,–·،é年東区はก้가서नि\n", max_size=14)


def passage(text, title=""):
    return Passage(id="1", title=title, text=text)


def unspaced(character):
    return unicodedata.name(character).startswith(UNSPACED)


def plain(text):
    """A normalised text without signs, and without spaces where scripts with and without spaces meet."""
    text = "".join(" " if unicodedata.category(each)[0] in "PS" else each for each in normalise(text))
    text = " ".join(text.split())
    kept = [
        place
        for place, each in enumerate(text)
        if each != " " or unspaced(text[place - 1]) == unspaced(text[place + 1])
    ]
    return "".join(text[place] for place in kept)


def inside_a_word(text, place):
    return 0 < place < len(text) and not any(each == " " or unspaced(each) for each in text[place - 1 : place + 1])


def plainly_held(text, gold):
    text, gold = plain(text), plain(gold)
    places = [place for place in range(len(text)) if gold and text.startswith(gold, place)]
    return any(not inside_a_word(text, place) and not inside_a_word(text, place + len(gold)) for place in places)


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=6))
@example(["in 東区1年"], ["1", "東", "1年", "in", "東 区"])
@example(["a، b–1"], ["a", "b", "1", "b 1", "b-1"])
def test_golds_are_held_as_a_plain_search_finds_them(texts, golds):
    held = held_golds(map(passage, texts), golds)
    assert set(held) == {gold for gold in golds if any(plainly_held(text, gold) for text in texts)}
    for gold, as_written in held.items():
        assert as_written == any(plainly_held(text, gold) and gold in text.strip() for text in texts)


@given(TEXTS, TEXTS)
def test_one_text_is_compared_as_a_collection_is(text, gold):
    assert holds([text], [gold]) == (gold in held_golds([passage(text)], [gold]))


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("It was founded in 1834.", "183", None),  # part of a word
        ("The US ARMY, of course", "US Army", False),
        ("它的貨幣是歐元。", "欧元", False),  # traditional and simplified characters
        ("서울은 한국의 수도이다", "서울", True),  # a particle joins the word
        ("ولد كورت كولمان، في", "كورت كولمان", True),  # punctuation that the normalisation leaves
        ("", "", None),
    ],
)
def test_what_counts_as_held(text, gold, expected):
    assert held_golds([passage(text)], [gold]).get(gold) == expected


def test_titles_are_part_of_their_passages():
    assert held_golds([passage("is a town.", title="Turku")], ["Turku"]) == {"Turku": True}


def test_golds_found_early_are_left_out_of_later_batches(monkeypatch):
    monkeypatch.setattr(answerable, "_AT_ONCE", 1)
    read = []
    texts = ["one two", "three", "four", "five"]
    held = held_golds(map(passage, texts), ["one", "two", "three", "FOUR"], progress=read.append)
    assert held == {"one": True, "two": True, "three": True, "FOUR": False}
    assert read == [1, 2, 3, 4]


def test_a_pass_ends_when_everything_is_found(monkeypatch):
    monkeypatch.setattr(answerable, "_AT_ONCE", 1)
    texts = iter(["one", "two", "three"])
    held_golds(map(passage, texts), ["one"])
    assert next(texts) == "three"


def asked(language, *answers, number="1"):
    return Question(id=number, dataset="set", language=language, text="?", answers=answers)


FINNISH, ENGLISH = asked("fi", "Saksa", "Saksan liittotasavalta"), asked("en", "Germany", "FRG", "D")
GOLDS = Golds([FINNISH, ENGLISH])


@pytest.mark.parametrize(
    ("collection", "held", "level"),
    [
        ("fi", {"Saksa": True}, "exact"),
        ("fi", {"Saksa": False}, "normalised"),
        ("fi", {"Saksan liittotasavalta": True}, "alias"),
        ("en", {"FRG": True}, "version"),
        ("en", {"Saksa": True, "Germany": True}, "exact"),
        ("fi", {"Germany": True}, ""),
        ("fi", {}, ""),
    ],
)
def test_levels(collection, held, level):
    assert GOLDS.level(FINNISH, collection, held) == level


def test_short_aliases_are_not_looked_for():
    assert GOLDS.all_of("fi") == {"Saksa", "Saksan liittotasavalta", "Germany", "FRG"}


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ("12 7", "short_gold"),
        ("12 twelve", ""),
        ("東京", ""),
        ("円", "short_gold"),
        ("No", "yes_no"),
        ("NO", "short_gold"),
    ],
)
def test_kinds_of_golds(answers, kind):
    question = asked("ja", *answers.split())
    assert Golds([question]).kind(question) == kind


def test_a_verdict_in_one_language_is_one_in_all():
    finnish = asked("fi", "kyllä")
    assert Golds([finnish, asked("en", "Yes.")]).kind(finnish) == "yes_no"


def row(number, **values):
    return Audited(split="test", dataset="set", question_id=number, language="fi", **values).stratified()


ROWS_OF_STRATA = {
    "answerable_natively": row("1", held={"fi": "alias", "en": "version"}),
    "answerable_elsewhere": row("2", held={"en": "version"}),
    "not_answerable": row("3", ranks={}),
    "short_gold": row("4", kind="short_gold", held={"fi": "exact"}),
}


def test_strata_of_an_audit_on_disk(tmp_path):
    write_json_lines(tmp_path / ROWS, map(dataclasses.asdict, ROWS_OF_STRATA.values()))
    keys = [each.key for each in ROWS_OF_STRATA.values()]
    assert list(strata(tmp_path, keys).values()) == list(ROWS_OF_STRATA)


def test_an_audit_of_other_questions_is_refused(tmp_path):
    write_json_lines(tmp_path / ROWS, [dataclasses.asdict(ROWS_OF_STRATA["short_gold"])])
    with pytest.raises(UserError, match="lacks 1 of the 2 questions, such as set/1/fi: audit the experiment"):
        strata(tmp_path, ["set/4/fi", "set/1/fi"])


def test_a_folder_without_an_audit_is_refused(tmp_path):
    with pytest.raises(UserError, match="no audit in .*: write one with `lcrag audit"):
        strata(tmp_path, [])


@pytest.mark.parametrize("line", ["{", '{"split": "test"}'])
def test_a_damaged_audit_is_refused(tmp_path, line):
    (tmp_path / ROWS).write_text(line)
    with pytest.raises(UserError, match="line 1, is no row of an audit"):
        strata(tmp_path, [])
