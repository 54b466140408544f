"""Tokenizers of every family through one interface, against the library of each."""

import copy

import pytest
import sentencepiece
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support import SENTENCES
from support.tokenizer_families import FAMILIES, LOSSLESS, SPECIAL, sentencepiece_model
from tokenizers import decoders, models, pre_tokenizers

from lcrag.errors import UserError
from lcrag.policy import HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer, vocabulary_tokenizer

# Characters in all the ways that tokenizers treat them: known, unknown, combining, wide; no U+2581, which is the space.
TEXT = st.text(list("ae \n</>円アé\u0301🙂ø5"))
SPELLED = st.lists(st.sampled_from([*SPECIAL, "<eos>", "a", " ", "円", "<", "s>", "/s>"]), max_size=12).map("".join)
every_family = pytest.mark.parametrize("family", FAMILIES)
every_lossless_family = pytest.mark.parametrize("family", LOSSLESS)


def library_ids(tokenizer: Tokenizer, text: str, ordinary: bool = False) -> list[int]:
    """Encodes a text by the library."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model).encode(text)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, split_special_tokens=ordinary)
    return fast.encode(text, add_special_tokens=False)


def library_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    if isinstance(tokenizer, SentencePieceTokenizer):
        return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model).decode(ids)
    return tokenizer.backend.decode(ids, skip_special_tokens=False)


@every_family
def test_text_is_encoded_as_the_library_does(family):
    tokenizer = FAMILIES[family]()
    assert isinstance(tokenizer, Tokenizer)
    texts = [*SENTENCES, "a </s><s> b", "", " ", "  two  spaces ", "ø ß\n\n", "don't, stop. now!"]
    for text in texts:
        assert tokenizer.encode(text) == library_ids(tokenizer, text)
        if not (family == "Unigram" and "</s>" in text):  # the library lets it find its special tokens nevertheless
            assert tokenizer.encode_ordinary(text) == library_ids(tokenizer, text, ordinary=True)
        assert tokenizer.decode(tokenizer.encode(text)) == library_text(tokenizer, tokenizer.encode(text))


@every_family
@given(data=st.data())
def test_any_tokens_are_decoded_as_the_library_does(family, data):
    tokenizer = FAMILIES[family]()
    whole = [i for i, token in enumerate(tokenizer.token_bytes) if valid(token) and i not in control(tokenizer)]
    ids = tokenizer.encode("a") + data.draw(st.lists(st.sampled_from(whole), max_size=20))
    assert tokenizer.decode(ids) == library_text(tokenizer, ids)


def valid(token: bytes) -> bool:
    """Whether the bytes are whole characters; libraries differ in how they show broken ones."""
    return token.decode(errors="ignore").encode() == token


def control(tokenizer: Tokenizer) -> set[int]:
    return set(tokenizer.special_tokens.values()) if isinstance(tokenizer, SentencePieceTokenizer) else set()


@every_lossless_family
@given(text=TEXT, before=TEXT)
def test_a_text_and_what_continues_it_come_back(family, text, before):
    tokenizer = LOSSLESS[family]()
    opening = text.removeprefix(" ") if family == "Metaspace" else text  # whose space in front may be the text's own
    assert tokenizer.decode(tokenizer.encode_ordinary(text)) == opening
    together = [*tokenizer.encode_ordinary("b" + before), *tokenizer.encode_ordinary(text, continues=True)]
    assert tokenizer.decode(together) == "b" + before + text
    assert tokenizer.decode_bytes(tokenizer.encode_ordinary(text, continues=True)) == text.encode()


@every_family
@given(text=SPELLED)
def test_ordinary_text_never_becomes_a_special_token(family, text):
    tokenizer = FAMILIES[family]()
    unknown = {tokenizer.special_tokens.get("<unk>")}  # what a model without byte fallback does not know
    for ids in (tokenizer.encode_ordinary(text), tokenizer.encode_ordinary(text, continues=True)):
        assert set(ids).isdisjoint(set(tokenizer.special_tokens.values()) - unknown)
        if family in LOSSLESS:
            assert text in (tokenizer.decode(ids), tokenizer.decode_bytes(ids).decode())


@every_family
def test_a_copy_is_the_same_tokenizer(family):
    tokenizer = FAMILIES[family]()
    tokenizer.encode_ordinary("a", continues=True)
    again = copy.deepcopy(tokenizer)
    text = "</s> <eos> a"
    assert again.encode_ordinary(text) == tokenizer.encode_ordinary(text)
    assert again.token_bytes == tokenizer.token_bytes
    assert again.fingerprint() == tokenizer.fingerprint()
    assert len(again.token_bytes) == again.vocabulary_size
    assert again.decode_bytes([again.vocabulary_size + 5]) == b""  # a row of the embedding without a token


def test_ids_may_have_holes():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = HuggingFaceTokenizer(backend=backend, eos_ids=(0,), pad_id=0)
    assert tokenizer.vocabulary_size == 8
    assert tokenizer.token_bytes[1:7] == (b"",) * 6
    assert tokenizer.decode([0, 7]) == backend.decode([0, 7]) == "a b"  # without a decoder words are joined by spaces


def test_what_cannot_be_a_tokenizer_is_refused():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = decoders.BPEDecoder()
    backend.add_tokens(["a"])
    for refused in (
        lambda: HuggingFaceTokenizer(backend=backend, eos_ids=(0,), pad_id=0).decode([0]),  # a token has no bytes
        lambda: vocabulary_tokenizer(object()),
        lambda: sentencepiece_model().encode_chat([{"role": "user", "content": "a"}]),
    ):
        with pytest.raises(UserError):
            refused()


def test_a_model_that_trims_spaces_keeps_the_one_between_texts():
    tokenizer = sentencepiece_model("unigram", vocabulary_size=350, remove_extra_whitespaces=True)
    for first, second in (("the code", " is EUR"), ("the co", "de is")):
        ids = [*tokenizer.encode(first), *tokenizer.encode_ordinary(second, continues=True)]
        assert tokenizer.decode(ids) == first + second
