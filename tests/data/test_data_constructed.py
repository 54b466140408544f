"""Constructed languages: substitutions are injective, keep lengths and invert exactly."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrag.data.constructed import (
    CONSTRUCTED,
    KIVARI,
    TOQAL,
    WordSubstitution,
    constructed_questions,
    english_vocabulary,
    into_constructed,
    vocabulary_of,
)
from lcrag.data.questions import Question
from lcrag.episodes import TranslationFailure
from lcrag.errors import UserError
from lcrag.models import FirstTranslator
from lcrag.models.translators import LookUpTranslator

TEXT = "Janet's ducks lay 16 eggs per day. She eats three; how much, in dollars ($2 or $3 an egg), does Janet make?"
WORDS = tuple("a go to of cat dog eggs ducks janet three dollars how much does make she eats lay per day".split())
SYLLABLES = re.compile(r"(?:[b-df-hj-np-tv-z][aeiou][b-df-hj-np-tv-z])*(?:[b-df-hj-np-tv-z][aeiou]?)?")
KIVARI_OF = WordSubstitution(vocabulary_of([TEXT, " ".join(WORDS)]), KIVARI.seed)

words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=9)
# What a text may be taken apart at, and what stands between.
texts = st.lists(
    st.one_of(words, words.map(str.title), st.sampled_from(WORDS), st.sampled_from(list("$\\{}()[]_ \n.,'’-—é7東")),
              st.sampled_from(["\\frac", "\\begin{cases}", "$x+y$", "\\(", "\\)", "$$", "café", "H2O", "x_max"])),
    max_size=25,
).map("".join)  # fmt: skip


def test_a_text_keeps_its_shape():
    text = KIVARI_OF.constructed(TEXT)
    assert KIVARI_OF.english(text) == TEXT != text
    assert [len(piece) for piece in re.split(r"(\W+)", text)] == [len(piece) for piece in re.split(r"(\W+)", TEXT)]
    assert re.sub("[A-Za-z]", "", text) == re.sub("[A-Za-z]", "", TEXT)
    assert [c.isupper() for c in text] == [c.isupper() for c in TEXT]
    assert not set(vocabulary_of([text])) & {"janet", "ducks", "eggs", "dollars"}  # prices are not mathematics


@pytest.mark.parametrize(
    "kept",
    [
        "12.5, 1/2, 3e8 and 2nd",
        r"\frac{a}{b} + \sqrt{x}",
        "$cats + dogs$ or $$cats = dogs$$",
        r"\(cats\) or \[cats\]",
        r"\begin{cases} x \end{cases}",
        "A) B. (C) x y_max H2O café ñu 東京",
        "≤ ∑ → % € \\$",
    ],
)
def test_numbers_latex_symbols_and_single_letters_pass(kept):
    table = WordSubstitution("and or cats dogs cases max caf frac sqrt begin end nd".split(), 1)
    text = table.constructed(kept)
    for piece in re.split(r" and | or ", kept):
        assert piece in text
    assert table.english(text) == kept


@settings(max_examples=300)
@given(texts, st.lists(words, max_size=40), st.integers(0, 3))
def test_every_text_is_restored(text, vocabulary, seed):
    table = WordSubstitution(vocabulary, seed)
    assert table.english(table.constructed(text)) == text
    assert table.constructed(table.english(text)) == text
    assert len(table.constructed(text)) == len(text)


@settings(max_examples=100)
@given(st.lists(words, max_size=200), st.integers(0, 3))
def test_no_two_words_share_one(vocabulary, seed):
    table = WordSubstitution(vocabulary, seed).words
    assert set(table) == set(vocabulary)
    assert len(set(table.values())) == len(table)
    assert all(len(word) == len(new) for word, new in table.items())


def test_words_are_syllables_while_there_are_any_and_no_english_ones():
    table = KIVARI_OF.words
    assert all(SYLLABLES.fullmatch(word) for word in table.values())
    assert not set(table) & set(table.values())


def test_a_length_with_more_words_than_syllables():
    """All 676 words of two letters: 105 get the syllables, the rest the other strings; a language of its own."""
    every = ["".join(pair) for pair in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=2)]
    table = WordSubstitution(every, 7).words
    assert set(table.values()) == set(every)
    assert sum(bool(SYLLABLES.fullmatch(word)) for word in table.values()) == 105
    some = WordSubstitution(every[:120], 7).words.values()
    assert (sum(bool(SYLLABLES.fullmatch(word)) for word in some), len(set(some))) == (105, 120)


def test_the_two_languages_are_independent():
    kivari, toqal = (language.over(WORDS).words for language in (KIVARI, TOQAL))
    assert sum(kivari[word] == toqal[word] for word in kivari) <= 2
    assert KIVARI.over(reversed(WORDS)).words == kivari


def test_the_look_up_translates_in_every_direction():
    translate = LookUpTranslator(vocabulary_of([TEXT]))
    (kivari,), (toqal,) = (translate([TEXT], "en", code) for code in CONSTRUCTED)
    assert len({TEXT, kivari, toqal}) == 3
    assert translate([kivari, toqal, TEXT, "42"], None, "en") == [TEXT, TEXT, TEXT, "42"]
    assert translate([kivari], "qki", "qto") == [toqal] == translate([kivari], None, "qto")
    assert translate.languages == ("en", "qki", "qto")
    assert [translate.language_of(text) for text in (TEXT, kivari, toqal)] == ["en", "qki", "qto"]
    with pytest.raises(UserError, match="'fi'"):
        LookUpTranslator(WORDS, ("fi",))


def test_other_languages_are_left_to_the_next_translator():
    look_up = LookUpTranslator(vocabulary_of([TEXT]))
    both = FirstTranslator((look_up, lambda texts, source, target: ["asked a model"] * len(texts)))
    french = "Combien de dollars gagne-t-elle chaque jour ?"
    for text, source, target in ((TEXT, None, "fr"), (TEXT, "fr", "en"), (french, None, "en")):
        assert isinstance(look_up([text], source, target)[0], TranslationFailure)
        assert both([text], source, target) == ["asked a model"]
    assert both(look_up([TEXT], "en", "qki"), None, "en") == [TEXT]


def test_questions_in_constructed_languages():
    asked = Question(id="1", dataset="d", language="en", text=TEXT, answers=("18",), extra={"domain": "mathematics"})
    finnish = dataclasses.replace(asked, language="fi")
    versions = constructed_questions([asked, finnish], vocabulary_of([TEXT]), ("qki", "qto"), tier="own")
    assert [(each.language, each.answers, each.extra, each.id) for each in versions] == [
        (code, ("18",), asked.extra | {"tier": "own"}, "1") for code in ("qki", "qto")
    ]
    assert LookUpTranslator(vocabulary_of([TEXT]))([versions[1].text], None, "en") == [TEXT]
    assert into_constructed(versions, ("qki",), WORDS) == []  # they are no longer English


def test_a_vocabulary_of_questions_and_of_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("geese\n\nDucks\n")
    english = Question(id="1", dataset="d", language="en", text="How many ducks?", answers=("3",))
    finnish = dataclasses.replace(english, language="fi", text="Montako ankkaa?")
    assert english_vocabulary([english, finnish], str(path)) == ["ducks", "geese", "how", "many"]
    path.write_text("ducks\nit's\n")
    with pytest.raises(UserError, match="words.txt, line 2"):
        english_vocabulary(file=str(path))
    with pytest.raises(UserError, match="no words"):
        english_vocabulary([finnish])
