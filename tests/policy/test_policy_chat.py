"""Conversations in chat templates, against `transformers`; contents never become control tokens."""

import dataclasses

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_tokenizer
from support.tokenizer_families import FAMILIES

from lcrag.errors import UserError
from lcrag.policy import ChatTemplate

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
