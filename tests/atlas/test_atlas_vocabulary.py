"""The atlas tokenizer, whose names and values keep their tokens; seqio vocabularies as tokenizers of a policy."""

import pathlib

import pytest
import seqio
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from lcrag.atlas import build_world, render_passage
from lcrag.atlas.encoder import SHIPPED_FOLDER, VOCABULARY_SIZE, tags, train_tokenizer
from lcrag.atlas.world import Entry
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.episodes import RETHINK
from lcrag.errors import UserError
from lcrag.policy import Tokenizer, load_tokenizer, vocabulary_tokenizer
from lcrag.sampling.choice import FOUND, StopTable

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
TOKENIZER = load_tokenizer(SHIPPED_FOLDER)


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


def test_it_has_exactly_4096_entries_and_each_tag_is_one():
    assert TOKENIZER.vocabulary_size == VOCABULARY_SIZE == 4096
    assert [TOKENIZER.encode(tag) for tag in tags()] == [[TOKENIZER.backend.token_to_id(tag)] for tag in tags()]
    assert TOKENIZER.decode(TOKENIZER.eos_ids) == "<eos>"
    assert TOKENIZER.backend.token_to_id("<pad>") == 0


@pytest.mark.parametrize("language", LCRL_LANGUAGES)
def test_a_value_and_a_name_are_the_same_tokens_everywhere(language):
    for question in WORLD.questions("held_out", [language]) + WORLD.questions("unseen", [language]):
        name = TOKENIZER.encode(f" {question.extra['entity']}")
        fact = FACTS[question.id]
        told = WORLD.written_passage("", language, [(fact, Entry(fact.value, 2020)), (fact, Entry(fact.value, None))])
        passage = TOKENIZER.encode(f" {render_passage(told)}\n")
        value = TOKENIZER.encode(f" {question.answers[0]}")
        assert passage[: len(name)] == name
        assert passage[-1 - len(value) : -1] == value
        assert contains(passage[: -len(value)], value)
        assert contains(TOKENIZER.encode(question.text), name)
        assert TOKENIZER.encode(f"<search> {question.extra['query']}</search>")[1 : 1 + len(name)] == name
        assert TOKENIZER.encode(f"<answer> {question.answers[0]}</answer>")[1:-1] == value


@given(st.integers(0, 99_999))
def test_digits_stand_alone(number):
    digits = str(number)
    pieces = [TOKENIZER.decode([index]) for index in TOKENIZER.encode(f" {digits}")]
    assert [piece.strip() for piece in pieces if piece.strip()] == list(digits)
    assert pieces[-len(digits) + 1 :] == list(digits[1:]) or len(digits) == 1


@given(st.text())
@settings(max_examples=200)
def test_every_text_survives(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode_bytes(ids) == text.encode()


@given(st.sampled_from(tags()), st.text(alphabet="aé中ไ م<>/ \n", max_size=6), st.text(alphabet="bж日2.?", max_size=6))
def test_a_tag_is_found_between_anything(tag, before, after):
    assert TOKENIZER.backend.token_to_id(tag) in TOKENIZER.encode(before + tag + after)


def test_texts_are_short_in_every_language():
    for language in LCRL_LANGUAGES:
        questions = WORLD.questions("held_out", (language,))
        passages = [f" {render_passage(passage)}\n" for passage in WORLD.passages(language)]
        for texts, longest in (
            ([f" {question.text}" for question in questions], 15),
            ([f" {question.extra['query']}" for question in questions], 8),
            (passages, 36),
        ):
            assert sum(len(TOKENIZER.encode(text)) for text in texts) / len(texts) <= longest


def test_training_again_gives_the_shipped_tokenizer(tmp_path):
    train_tokenizer(WORLD, [f" {RETHINK}"] * 500).save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).fingerprint() == TOKENIZER.fingerprint()


def test_the_file_opens_in_transformers():
    fast = PreTrainedTokenizerFast(tokenizer_file=str(SHIPPED_FOLDER / "tokenizer.json"))
    text = " France: currency code: EUR\n<answer> EUR</answer>"
    assert fast(text).input_ids == TOKENIZER.encode(text)


MODEL = pathlib.Path(seqio.__file__).parent / "test_data" / "sentencepiece" / "sentencepiece.model"
TEXTS = ["this is a test", " the  seas ", "a </s> test", "x <extra_id_0> a", ""]


@pytest.mark.parametrize("extra_ids", [0, 10])
def test_a_vocabulary_is_a_tokenizer(extra_ids):
    vocabulary = seqio.SentencePieceVocabulary(str(MODEL), extra_ids=extra_ids)
    tokenizer = vocabulary_tokenizer(vocabulary)
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.eos_ids, tokenizer.pad_id) == ((vocabulary.eos_id,), vocabulary.pad_id)
    assert tokenizer.vocabulary_size == vocabulary.vocab_size == len(tokenizer.token_bytes)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == vocabulary.encode(text)
        if vocabulary.unk_id not in ids:
            assert tokenizer.decode(ids) == vocabulary.decode(ids)


def test_sentinels_of_span_corruption_are_no_ordinary_text():
    tokenizer = vocabulary_tokenizer(seqio.SentencePieceVocabulary(str(MODEL), extra_ids=10))
    sentinels = {index for token, index in tokenizer.special_tokens.items() if "extra_id" in token}
    assert len(sentinels) == 10
    assert sentinels & set(tokenizer.encode("a <extra_id_0>"))
    assert sentinels.isdisjoint(tokenizer.encode_ordinary("a <extra_id_0>"))
    assert sentinels.isdisjoint(tokenizer.encode_ordinary(" <extra_id_0>", continues=True))


def test_generations_stop_at_strings_of_a_vocabulary():
    tokenizer = vocabulary_tokenizer(seqio.SentencePieceVocabulary(str(MODEL)))
    stops = StopTable(tokenizer.token_bytes)
    state, stopped = stops.start((" test",)), []
    for index in tokenizer.encode("see a test is"):
        state = stops.table[state, index]
        stopped.append(state == FOUND)
    assert tokenizer.decode(tokenizer.encode("see a test is")[: stopped.index(True) + 1]) == "see a test"


def test_bytes_are_no_sentencepiece_model():
    with pytest.raises(UserError):
        vocabulary_tokenizer(seqio.ByteVocabulary())
