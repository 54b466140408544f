"""The atlas tokenizer, whose names and values keep their tokens; seqio vocabularies as tokenizers of a policy."""

import pathlib

import pytest
import seqio
from transformers import PreTrainedTokenizerFast

from lcrag.atlas import build_world, render_passage
from lcrag.atlas.encoder import SHIPPED_FOLDER, train_tokenizer
from lcrag.atlas.world import Entry
from lcrag.episodes import RETHINK
from lcrag.errors import UserError
from lcrag.policy import Tokenizer, load_tokenizer, vocabulary_tokenizer
from lcrag.sampling.choice import FOUND, StopTable

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
TOKENIZER = load_tokenizer(SHIPPED_FOLDER)


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


@pytest.mark.parametrize("language", ["en", "ja", "ar", "th"])
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
