"""Tokenizers with the chat templates of model families."""

import functools
import shutil
import tempfile
from pathlib import Path

import tokenizers
from prepared_data import prepared

from lcrag.policy import ChatTemplate, HuggingFaceTokenizer, load_tokenizer
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


def chat_model(source: str, specials: str, end: str, **variables) -> HuggingFaceTokenizer:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer().backend.to_str())
    backend.add_special_tokens(specials.split())
    template = ChatTemplate(source, variables)
    return HuggingFaceTokenizer(backend, (backend.token_to_id(end),), 0, (), template)


@functools.cache
def chat_models() -> dict[str, HuggingFaceTokenizer]:
    """A tokenizer with the template of each family; Qwen's are the published files."""
    return {
        "SmolLM2": chat_model(SMOLLM2, "<|im_start|> <|im_end|>", "<|im_end|>"),
        "Llama 3": chat_model(
            LLAMA_3, "<|begin|> <|start_header_id|> <|end_header_id|> <|eot_id|>", "<|eot_id|>", bos_token="<|begin|>"
        ),
        "Gemma 3": chat_model(GEMMA_3, "<bos> <start_of_turn> <end_of_turn>", "<end_of_turn>", bos_token="<bos>"),
    }


def qwen(name: str) -> HuggingFaceTokenizer:
    folder, source = Path(tempfile.mkdtemp()), prepared("tokenizers/qwen")
    shutil.copy(source / "tokenizer.qwen3.json", folder / "tokenizer.json")
    shutil.copy(source / f"tokenizer_config.{name}.json", folder / "tokenizer_config.json")
    return load_tokenizer(folder)
