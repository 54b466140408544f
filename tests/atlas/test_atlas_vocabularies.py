"""seqio vocabularies as tokenizers of a policy, with the model that seqio itself is tested with."""

import pathlib

import pytest
import seqio

from lcrag.errors import UserError
from lcrag.policy import Tokenizer, vocabulary_tokenizer
from lcrag.sampling.stop import FOUND, StopTable

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
    with pytest.raises(UserError, match="ByteVocabulary holds no SentencePiece model"):
        vocabulary_tokenizer(seqio.ByteVocabulary())
