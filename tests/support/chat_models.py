"""Tokenizers with the chat templates of model families."""

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import strategies as st
from prepared_data import prepared
from tokenizers import AddedToken

from lcrag.policy import ChatTemplate, Tokenizer, load_tokenizer
from support import tiny_tokenizer

# What the templates of these models write for plain messages.
SMOLLM2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by"
    " Hugging Face<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}{% set role = 'ipython' if message.role == 'tool' else message.role %}"
    "<|start_header_id|>{{ role }}<|end_header_id|>\n\n"
    "{% if tools is defined and tools is not none and role == 'user' %}"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\n\n'
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}{% endif %}"
    "{% if 'tool_calls' in message %}{% set call = message.tool_calls[0].function %}"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
    "{% elif role == 'ipython' %}{{ message.content | tojson }}{% else %}{{ message.content | trim }}{% endif %}"
    "<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

GEMMA_3 = (  # no system role: its text begins the first message of the user
    "{{ bos_token }}{% set system, rest = '', messages %}"
    "{% if messages[0].role == 'system' %}"
    "{% set system, rest = messages[0].content + '\n\n', messages[1:] %}{% endif %}"
    "{% for message in rest %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n{{ system if loop.first }}"
    "{{ message.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

# The system turn of Llama 3.1 says the day of a variable, that of 3.2 the present one.
_LLAMA_SYSTEM = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set system, messages = messages[0].content | trim, messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: DAY\n\n"
    "{{ system }}<|eot_id|>"
)
LLAMA_3_1 = LLAMA_3.replace("{{ bos_token }}", _LLAMA_SYSTEM.replace("DAY", "{{ date_string or '26 Jul 2024' }}"))
LLAMA_3_2 = LLAMA_3.replace("{{ bos_token }}", _LLAMA_SYSTEM.replace("DAY", "{{ strftime_now('%d %b ' ~ '%Y') }}"))

PHI_4 = (  # the first template: a user's turn opens the model's
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content + '<|im_end|>' }}{% else %}"
    "{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}"
    "{% if message.role == 'user' %}<|im_start|>assistant<|im_sep|>{% endif %}{% endif %}{% endfor %}"
)

MISTRAL = (  # 7B of version 0.3: the system message begins the last one of the user
    "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content + '\n\n', messages[1:] %}"
    "{% else %}{% set system, rest = '', messages %}{% endif %}{{ bos_token }}{% for message in rest %}"
    "{% if message.role == 'user' %}[INST] {{ system if loop.last }}{{ message.content }}[/INST]"
    "{% elif message.role == 'assistant' %} {{ message.content | trim + eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

DEEPSEEK_R1 = (  # opens a thought, and drops those of earlier turns
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}"
    "{% elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}"
    "{% else %}{{ '<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)


def chat_model(
    source: str, specials: str = "<|im_start|> <|im_end|>", end: str = "<|im_end|>", **variables
) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer().backend.to_str())
    backend.add_special_tokens(specials.split())
    template = ChatTemplate(source, variables)
    return Tokenizer(backend, (backend.token_to_id(end),), 0, (), template)


@functools.cache
def chat_models() -> dict[str, Tokenizer]:
    """A tokenizer with the template of each family; Qwen's are the published files."""
    return {
        "SmolLM2": chat_model(SMOLLM2),
        "Llama 3": chat_model(
            LLAMA_3, "<|begin|> <|start_header_id|> <|end_header_id|> <|eot_id|>", "<|eot_id|>", bos_token="<|begin|>"
        ),
        "Gemma 3": chat_model(GEMMA_3, "<bos> <start_of_turn> <end_of_turn>", "<end_of_turn>", bos_token="<bos>"),
    }


THINKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # added tokens that are no control tokens


def folder_of(path, source, control, special=True, **settings):
    """A folder whose control tokens may be stored as ordinary added ones."""
    path.mkdir(exist_ok=True)
    if source in ("qwen2.5", "qwen3"):
        config = prepared("tokenizers/qwen") / f"tokenizer_config.{source}.json"
        source = json.loads(config.read_text())["chat_template"]
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer().backend.to_str().replace("<eos>", "<unused0>"))
    backend.add_tokens([AddedToken(token, normalized=False, special=special) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False) for token in THINKS])
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": source}))
    return path


def qwen(name: str) -> Tokenizer:
    folder, source = Path(tempfile.mkdtemp()), prepared("tokenizers/qwen")
    shutil.copy(source / "tokenizer.qwen3.json", folder / "tokenizer.json")
    shutil.copy(source / f"tokenizer_config.{name}.json", folder / "tokenizer_config.json")
    return load_tokenizer(folder)


# --- Generated dialogues ---

OWN_FOLDER = pytest.param("SmolLM2, its own folder", marks=pytest.mark.slow)


def of_family(name):
    """Our tokenizer of a family, by its name or `OWN_FOLDER`, and the tokenizer of transformers."""
    if name.endswith("folder"):
        if not (folder := os.environ.get("LCRAG_TEST_SMOLLM2")):
            pytest.skip("needs SmolLM2-135M-Instruct: set LCRAG_TEST_SMOLLM2 to its folder")
        tokenizer = load_tokenizer(folder)
    else:
        tokenizer = qwen(name.lower()) if name.startswith("Qwen") else chat_models()[name]
    template = tokenizer.chat_template
    return tokenizer, transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, chat_template=template.source, **template.variables
    )


def said_and_shown(words):
    """Strategies for texts of the policy and of the environment, made of words that are hard to tokenize."""
    said = st.lists(st.sampled_from(words), min_size=1, max_size=6).map("".join).map(str.strip).filter(bool)
    return said, st.one_of(st.lists(st.sampled_from(words), max_size=6).map("".join), st.text(max_size=12))
