"""Constructed languages: substitutions are injective, keep lengths and invert exactly."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrag.data.constructed import (
    CONSTRUCTED,
    WordSubstitution,
    constructed_questions,
    english_vocabulary,
    into_constructed,
    substitution,
    vocabulary_of,
)
from lcrag.data.questions import Question
from lcrag.episodes import TranslationFailure
from lcrag.errors import UserError
from lcrag.models.translators import FirstTranslator, LookUpTranslator

TEXT = "Janet's ducks lay 16 eggs per day. She eats three; how much, in dollars ($2 or $3 an egg), does Janet make?"
WORDS = tuple("a go to of cat dog eggs ducks janet three dollars how much does make she eats lay per day".split())
SYLLABLES = re.compile(r"(?:[b-df-hj-np-tv-z][aeiou][b-df-hj-np-tv-z])*(?:[b-df-hj-np-tv-z][aeiou]?)?")
KIVARI = substitution("qki", vocabulary_of([TEXT, " ".join(WORDS)]))

words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=9)
# What a text may be taken apart at, and what stands between.
texts = st.lists(
    st.one_of(words, words.map(str.title), st.sampled_from(WORDS), st.sampled_from(list("$\\{}()[]_ \n.,'’-—é7東")),
              st.sampled_from(["\\frac", "\\begin{cases}", "$x+y$", "\\(", "\\)", "$$", "café", "H2O", "x_max"])),
    max_size=25,
).map("".join)  # fmt: skip


def test_a_text_keeps_its_shape():
    text = KIVARI.constructed(TEXT)
    assert KIVARI.english(text) == TEXT != text
    assert [len(piece) for piece in re.split(r"(\W+)", text)] == [len(piece) for piece in re.split(r"(\W+)", TEXT)]
    assert re.sub("[A-Za-z]", "", text) == re.sub("[A-Za-z]", "", TEXT)
    assert [c.isupper() for c in text] == [c.isupper() for c in TEXT]
    assert not set(vocabulary_of([text])) & {"janet", "ducks", "eggs", "dollars"}  # prices are not mathematics


@pytest.mark.parametrize(
    "kept",
    [
        r"12.5, 1/2, 3e8 and 2nd or \frac{a}{b} + \sqrt{x} or ≤ ∑ → % € \$",
        r"$cats + dogs$ or $$cats = dogs$$ or \(cats\) or \[cats\]",
        r"\begin{cases} x \end{cases} or A) B. (C) x y_max H2O café ñu 東京",
    ],
)
def test_numbers_latex_symbols_and_single_letters_pass(kept):
    table = WordSubstitution("and or cats dogs cases max caf frac sqrt begin end nd".split(), 1)
    text = table.constructed(kept)
    assert all(piece in text for piece in re.split(r" and | or ", kept))
    assert table.english(text) == kept


@settings(max_examples=200)
@given(texts, st.lists(words, max_size=40), st.integers(0, 3))
def test_every_text_is_restored_and_no_two_words_share_one(text, vocabulary, seed):
    table = WordSubstitution(vocabulary, seed)
    assert table.english(table.constructed(text)) == text == table.constructed(table.english(text))
    assert len(table.constructed(text)) == len(text)
    assert set(table.words) == set(vocabulary)
    assert len(set(table.words.values())) == len(table.words)


def test_words_are_syllables_while_there_are_any_and_no_english_ones():
    assert all(SYLLABLES.fullmatch(word) for word in KIVARI.words.values())
    assert not set(KIVARI.words) & set(KIVARI.words.values())
    # All 676 words of two letters: 105 get the syllables, the rest the other strings.
    pairs = ["".join(pair) for pair in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=2)]
    for some in (pairs, pairs[:120]):
        codes = set(WordSubstitution(some, 7).words.values())
        assert (len(codes), sum(bool(SYLLABLES.fullmatch(word)) for word in codes)) == (len(some), 105)


def test_the_look_up_translates_in_every_direction_and_leaves_other_languages_to_the_next():
    look_up = LookUpTranslator(vocabulary_of([TEXT]))
    (kivari,), (toqal,) = (look_up([TEXT], "en", code) for code in CONSTRUCTED)
    assert len({TEXT, kivari, toqal}) == 3
    assert look_up([kivari, toqal, TEXT, "42"], None, "en") == [TEXT, TEXT, TEXT, "42"]
    assert look_up([kivari], "qki", "qto") == [toqal] == look_up([kivari], None, "qto")
    assert [look_up.language_of(text) for text in (TEXT, kivari, toqal)] == ["en", "qki", "qto"]
    with pytest.raises(UserError):
        LookUpTranslator(WORDS, ("fi",))
    both = FirstTranslator((look_up, lambda texts, source, target: ["asked a model"] * len(texts)))
    french = "Combien de dollars gagne-t-elle chaque jour ?"
    for text, source, target in ((TEXT, None, "fr"), (TEXT, "fr", "en"), (french, None, "en")):
        assert isinstance(look_up([text], source, target)[0], TranslationFailure)
        assert both([text], source, target) == ["asked a model"]
    assert both([kivari], None, "en") == [TEXT]


def test_questions_in_constructed_languages_and_their_vocabulary(tmp_path):
    english = Question(id="1", dataset="d", language="en", text=TEXT, answers=("18",), extra={"domain": "mathematics"})
    finnish = dataclasses.replace(english, language="fi", text="Montako ankkaa?")
    versions = constructed_questions([english, finnish], vocabulary_of([TEXT]), ("qki", "qto"), tier="own")
    assert [(q.language, q.answers, q.extra, q.id) for q in versions] == [
        (code, ("18",), english.extra | {"tier": "own"}, "1") for code in ("qki", "qto")
    ]
    assert LookUpTranslator(vocabulary_of([TEXT]))([versions[1].text], None, "en") == [TEXT]
    assert into_constructed(versions, ("qki",), WORDS) == []  # they are no longer English

    path = tmp_path / "words.txt"
    path.write_text("geese\n\nDucks\n")
    assert english_vocabulary([english, finnish], str(path)) == sorted({*vocabulary_of([TEXT]), "geese"})
    path.write_text("ducks\nit's\n")
    with pytest.raises(UserError, match="words.txt, line 2"):
        english_vocabulary(file=str(path))
    with pytest.raises(UserError):
        english_vocabulary([finnish])
