"""The interface to tokenizers, and conversations in a model's chat template."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from lcrag.errors import UserError

TokenIds: TypeAlias = Sequence[int] | np.ndarray
Message: TypeAlias = Mapping[str, str]

# Llama 3.1 and later write the date into the system turn and fall back to this one. A prompt that depends on the date
# could not be sampled again.
DATE = "26 Jul 2024"
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # reserved by Unicode for internal use


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation and its tokens."""

    text: str
    ids: list[int]


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template of `transformers`."""

    source: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # such as `bos_token`

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """Renders a conversation in a sandbox, up to where the model continues."""
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        variables: dict[str, Any] = {"date_string": DATE, **self.variables, **options}
        conversation = [dict(message) for message in messages]
        try:
            rendered, _ = render_jinja_template(
                conversations=[conversation], chat_template=self.source, add_generation_prompt=True, **variables
            )
        except jinja2.TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"the model's chat template refuses a conversation of {roles}: {error}; change Chat.system, or write"
                " prompts without a template by Chat.template = False"
            ) from error
        return rendered[0]


def render_marked(
    template: ChatTemplate, messages: Sequence[Message], special_tokens: Iterable[str], options: Mapping[str, Any]
) -> tuple[str, list[int]]:
    """Renders a conversation; also returns the character positions at which contents spell a control token.

    They are marked by a character that occurs nowhere else, which is removed from the rendered text.
    """
    whole = "".join(message["content"] for message in messages)
    mark = next(character for character in _NONCHARACTERS if character not in whole)
    spelled = re.compile("(?=" + "|".join(map(re.escape, special_tokens)) + ")") if special_tokens else None
    marked = [
        {**message, "content": spelled.sub(mark, message["content"]) if spelled else message["content"]}
        for message in messages
    ]
    pieces = template.render(marked, **options).split(mark)
    positions = np.cumsum([len(piece) for piece in pieces[:-1]], dtype=int).tolist()
    return "".join(pieces), positions


def bytes_of_ids(ids: TokenIds, table: Sequence[bytes]) -> bytes:
    """Joins the bytes of ids; ids beyond the table have none."""
    return b"".join(table[index] for index in map(int, ids) if index < len(table))


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of a tokenizer, as sampling, episodes and learning use it.

    Implemented by `HuggingFaceTokenizer` and `SentencePieceTokenizer`. Use `encode_ordinary` for external text: it
    never produces control tokens. `encode` is for text that may contain them, such as hand-written prompts.
    """

    @property
    def vocabulary_size(self) -> int: ...  # the largest id plus one; a model may have more embedding rows

    @property
    def eos_ids(self) -> tuple[int, ...]: ...  # end a generation; the preferred one first

    @property
    def pad_id(self) -> int: ...  # masks, not ids, determine what is padding

    @property
    def beginning_ids(self) -> tuple[int, ...]: ...  # begin every context, such as Llama's begin-of-text; often empty

    @property
    def special_tokens(self) -> Mapping[str, int]: ...  # control tokens, which ordinary text is never encoded to

    @property
    def token_bytes(self) -> tuple[bytes, ...]: ...  # of each id of the vocabulary

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    def encode(self, text: str) -> list[int]:
        """Encodes a text as the library does, control tokens included; adds nothing at either end."""

    def encode_ordinary(self, text: str, *, continues: bool = False) -> list[int]:
        """Encodes external text, without control tokens: `<|im_end|>` or `</s>` is encoded as these characters.

        With `continues`, other text precedes it: no space is put in front (SentencePiece's dummy prefix).
        """

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> ChatPrompt:
        """Encodes a conversation in the model's template, up to where the model continues.

        Messages have a role and a content, which is ordinary text; `options` are variables of the template, such as
        Qwen3's `enable_thinking`.
        """

    def decode(self, ids: TokenIds) -> str:
        """Decodes ids from the beginning of a text; incomplete characters become U+FFFD."""

    def decode_bytes(self, ids: TokenIds) -> bytes:
        """Decodes ids anywhere in a text to bytes; ids beyond the vocabulary have none."""

    def fingerprint(self) -> str:
        """Returns a short hash that identifies the tokenizer."""
