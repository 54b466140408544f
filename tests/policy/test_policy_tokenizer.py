"""Tokenizers of every family and chat templates, against the library of each; no text becomes a control token."""

import copy
import dataclasses

import pytest
import sentencepiece
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support import SENTENCES, tiny_tokenizer
from support.tokenizer_families import FAMILIES, LOSSLESS, SPECIAL, sentencepiece_model
from tokenizers import decoders, models, pre_tokenizers

from lcrag.errors import UserError
from lcrag.policy import ChatTemplate, HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer, vocabulary_tokenizer

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


# The marks of Llama 2, in one line: every role between special tokens, contents trimmed.
SOURCE = (
    "{% for message in messages %}{{ bos_token }}[{{ message.role }}] {{ message.content | trim }} {{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}[assistant]{% if enable_thinking is defined and not"
    " enable_thinking %} no thought{% endif %}{% endif %}"
)
TEMPLATE = ChatTemplate(SOURCE, {"bos_token": "<s>", "eos_token": "</s>"})
HUGGING_FACE = [family for family in FAMILIES if family not in ("SentencePiece", "byte-level")]
CONTENT = st.lists(st.sampled_from(["<s>", "</s>", "<unk>", "a", " ", "円", "<", "/s>"]), max_size=8).map("".join)


def with_template(family: str, template: ChatTemplate = TEMPLATE):
    return dataclasses.replace(FAMILIES[family](), chat_template=template)


@pytest.mark.parametrize("family", HUGGING_FACE)
@pytest.mark.parametrize("system", [False, True])
def test_a_conversation_is_what_transformers_makes_of_it(family, system):
    tokenizer = with_template(family)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, chat_template=SOURCE, bos_token="<s>", eos_token="</s>"
    )
    messages = [{"role": "system", "content": "Be brief."}] * system + [{"role": "user", "content": " EUR since 円? "}]
    for options in ({}, {"enable_thinking": False}):
        prompt = tokenizer.encode_chat(messages, **options)
        arguments = {"add_generation_prompt": True} | options
        assert prompt.text == fast.apply_chat_template(messages, tokenize=False, **arguments)
        assert prompt.ids == fast.apply_chat_template(messages, tokenize=True, return_dict=False, **arguments)


@pytest.mark.parametrize("family", HUGGING_FACE)
@given(content=CONTENT)
def test_contents_never_become_control_tokens(family, content):
    tokenizer = with_template(family)
    special = set(tokenizer.special_tokens.values()) - {tokenizer.special_tokens["<unk>"]}
    prompt = tokenizer.encode_chat([{"role": "user", "content": content}])
    control = [index for index in prompt.ids if index in special]
    assert [tokenizer.backend.id_to_token(index) for index in control] == ["<s>", "</s>", "<s>"]
    assert prompt.text == f"<s>[user] {content.strip()} </s><s>[assistant]"
    if family == "Gemma":
        assert tokenizer.decode(prompt.ids) == prompt.text


def test_the_mark_may_stand_in_a_content():
    content = "\ufdd0</s>\ufdd1"
    prompt = with_template("Gemma").encode_chat([{"role": "user", "content": content}])
    assert prompt.text == f"<s>[user] {content} </s><s>[assistant]"


def test_a_prompt_does_not_depend_on_the_day():
    dated = ChatTemplate("{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}")
    assert dated.render([{"role": "user", "content": "a"}]) == "26 Jul 2024"
    assert dated.render([{"role": "user", "content": "a"}], date_string="1 May 2025") == "1 May 2025"


def test_what_a_template_refuses_is_one_sentence():
    strict = ChatTemplate("{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}")
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    unsafe = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    for template in (strict, ChatTemplate("{% if %}"), unsafe):
        with pytest.raises(UserError, match="refuses a conversation of system, user: "):
            template.render(messages)
    with pytest.raises(UserError, match="no chat template"):
        tiny_tokenizer().encode_chat(messages)
