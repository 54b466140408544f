"""What is read of a model's conversation, from folders whose files say less than their chat template."""

import dataclasses

import numpy as np
import pytest
from support.chat_models import DEEPSEEK_R1, GEMMA_3, LLAMA_3_1, LLAMA_3_2, MISTRAL, PHI_4, SMOLLM2, THINKS, folder_of

from lcrag.curation.rows import RowEncoder
from lcrag.data.demonstrations import DemonstratedTurn, Demonstration
from lcrag.episodes import Chat
from lcrag.errors import UserError
from lcrag.policy import ChatTemplate, load_tokenizer

LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
R1 = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
# Template, control tokens, those that a folder names, the end of a turn, a thought left open, a default system message.
FAMILIES = {
    "Qwen2.5": ("qwen2.5", CHATML, {}, "<|im_end|>", None, "You are Qwen, created by Alibaba Cloud."),
    "Qwen3": ("qwen3", CHATML, {"eos_token": "<|endoftext|>"}, "<|im_end|>", None, ""),
    "Llama 3.1": (LLAMA_3_1, LLAMA, {"eos_token": "<|end_of_text|>"}, "<|eot_id|>", None, ""),
    "Llama 3.2": (LLAMA_3_2, LLAMA, {}, "<|eot_id|>", None, ""),
    "Gemma 3": (GEMMA_3, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), {}, "<end_of_turn>", None, ""),
    "SmolLM2": (SMOLLM2, CHATML, {}, "<|im_end|>", None, "You are a helpful AI assistant named SmolLM"),
    "Phi 4": (PHI_4, (*CHATML, "<|im_sep|>"), {"eos_token": "<|endoftext|>"}, "<|im_end|>", None, ""),
    "Mistral": (MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), {"eos_token": "</s>"}, "</s>", None, ""),
    "DeepSeek-R1": (DEEPSEEK_R1, R1, {}, "<｜end▁of▁sentence｜>", "<think>", ""),
}
TURN = "{% for message in messages %}<|from|>{{ message.role }}\n{{ message.content }}END\n{% endfor %}<|from|>OPENS"


@pytest.mark.parametrize("special", [True, False], ids=["control tokens", "stored as ordinary ones"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_is_read_from_its_template(family, special, tmp_path):
    source, control, named, end, thought, system = FAMILIES[family]
    named = {"bos_token": control[0]} | named
    tokenizer = load_tokenizer(folder_of(tmp_path / "a", source, control, special, **named))
    index = tokenizer.backend.token_to_id(end)
    assert index in tokenizer.eos_ids
    assert set(control) <= tokenizer.special_tokens.keys()
    assert not set(THINKS) & tokenizer.special_tokens.keys()
    chat = Chat()
    chat.check(tokenizer)
    assert chat.end_of_turn(tokenizer) == index
    said = chat.conversation(tokenizer)
    assert (said.thought, said.system[: len(system) or None]) == (thought, system)
    # a row of SFT ends by it, and no text of a question becomes it
    question = f"What is {end} for {control[2]}?"
    turns = (DemonstratedTurn(by="policy", text="An end.", learn=True),)
    demonstration = Demonstration(opening=question, turns=turns, topic="", path=tmp_path, line=1)
    row = RowEncoder(tokenizer, chat, 2000).demonstration(demonstration)
    assert (row.tokens[-1], row.by_policy[-1]) == (index, True)
    plain = RowEncoder(tokenizer, chat, 2000).demonstration(dataclasses.replace(demonstration, opening="Why?"))
    ids = tokenizer.backend.token_to_id
    assert [np.sum(row.tokens == ids(token)) for token in control] == [
        np.sum(plain.tokens == ids(token)) for token in control
    ]
    # what is written again says the same
    tokenizer.save(tmp_path / "b")
    assert load_tokenizer(tmp_path / "b").special_tokens == tokenizer.special_tokens


@pytest.mark.parametrize("end", ["<|turn_over|>", "<turn_over>", "[OVER]", "\n<|turn_over|>"])
@pytest.mark.parametrize("special", [True, False])
def test_any_token_by_which_a_template_ends_a_turn_ends_a_generation(end, special, tmp_path):
    control = ("<|from|>", "<|endoftext|>", end.strip())
    folder = folder_of(tmp_path, TURN.replace("END", end), control, special, eos_token="<|endoftext|>")
    tokenizer = load_tokenizer(folder)
    names = [tokenizer.backend.id_to_token(index) for index in tokenizer.eos_ids]
    assert names == ["<|endoftext|>", end.strip()]
    Chat().check(tokenizer)
    assert end.strip() in tokenizer.special_tokens


def test_templates_of_plain_texts_end_no_turn(tmp_path):
    source = "{% for message in messages %}### {{ message.role }}\n{{ message.content }}\n\n{% endfor %}### assistant\n"
    tokenizer = load_tokenizer(folder_of(tmp_path, source, ("<|endoftext|>",)))
    Chat().check(tokenizer)
    assert Chat().end_of_turn(tokenizer) is None
    broken = load_tokenizer(folder_of(tmp_path, "{{ messages[0].content[0].text | length + 'a' }}", ("<|endoftext|>",)))
    Chat(template=False).check(broken)
    with pytest.raises(UserError, match="refuses a conversation of user"):
        Chat().check(broken)


@pytest.mark.parametrize(
    ("opens", "thought"),
    [
        ("assistant\n", None),
        ("assistant\n<think>\nOkay", "<think>"),
        ("assistant\n<think>\n\n</think>\n\n", None),
        ("assistant\n<think></think><thinking>\n", "<thinking>"),
        ("[THINK]", "[THINK]"),
        ("◁think▷", "◁think▷"),
        ("<answer>", None),
    ],
)
def test_a_thought_that_a_template_leaves_open(opens, thought):
    assert ChatTemplate(TURN.replace("OPENS", opens)).conversation().thought == thought


def test_a_switch_of_the_template_opens_or_closes_a_thought(tmp_path):
    tokenizer = load_tokenizer(folder_of(tmp_path, "qwen3", CHATML))
    for thinks in (None, True, False):
        assert Chat(enable_thinking=thinks).conversation(tokenizer).thought is None
    assert Chat(enable_thinking=False).conversation(tokenizer).opens.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("ask", [{}, {"system": "Be brief."}])
def test_tools_keep_the_default_system_message(ask, tmp_path):
    tokenizer = load_tokenizer(folder_of(tmp_path, SMOLLM2, CHATML))
    text = Chat(tools=True, turns="messages").opening(tokenizer, "Where?", offers=("search",), **ask).text
    assert "<tools>" in text
    assert ("named SmolLM" in text) == (not ask)  # as without tools, instructions take its place
    assert ("named SmolLM" in Chat().opening(tokenizer, "Where?", **ask).text) == (not ask)
    Chat(tools=True, turns="messages").check(tokenizer)
    Chat(tools=True, turns="messages", system="").check(tokenizer)


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("turns", ["single", "messages", "appended"])
@pytest.mark.parametrize("family", FAMILIES)
def test_settings_that_a_template_supports(family, turns, tools, tmp_path):
    source, control, named, end, *_ = FAMILIES[family]
    tokenizer = load_tokenizer(folder_of(tmp_path, source, control, **({"bos_token": control[0]} | named)))
    chat = Chat(turns=turns, tools=tools)
    rewrites = {"Mistral": turns == "messages" or tools, "DeepSeek-R1": turns == "messages"}  # earlier turns
    if rewrites.get(family) or (tools and turns == "single"):
        with pytest.raises(UserError, match="set Chat.turns = "):
            chat.check(tokenizer)
    else:
        chat.check(tokenizer)
        if turns != "single":  # an end of turn that the policy sampled is not written twice
            role = chat.observation_role(tokenizer)
            assert chat.observation(tokenizer, role, "Found.").ids[0] == chat.end_of_turn(tokenizer)
