"""The one small interface to tokenizers, whatever they are made of."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from lcrag.policy.chat import ChatPrompt, ChatTemplate, Message

TokenIds: TypeAlias = Sequence[int] | np.ndarray


@runtime_checkable
class Tokenizer(Protocol):
    """What sampling, episodes and learning need of a tokenizer.

    `HuggingFaceTokenizer` and `SentencePieceTokenizer` are the two kinds. Text from outside is for `encode_ordinary`,
    which makes no control tokens of it; `encode` is for text that may write them, such as a prompt laid out by hand.
    """

    @property
    def vocabulary_size(self) -> int:
        """The largest id plus one; a model may have more embedding rows."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a generation; the first one is used when a single one is wanted."""

    @property
    def pad_id(self) -> int:
        """Id of padding; it never carries meaning, masks say what is padding."""

    @property
    def beginning_ids(self) -> tuple[int, ...]:
        """What a context begins with, such as Llama's begin-of-text token; mostly nothing."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The control tokens, which ordinary text is never encoded to."""

    @property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The bytes that each id of the vocabulary stands for."""

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How the model wants a conversation written down; None if it was made for none."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as the library reads it, control tokens included; nothing is added at either end."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text."""

    def encode_ordinary(self, text: str, *, continues: bool = False) -> list[int]:
        """Token ids of text from outside: one that spells `<|im_end|>` or `</s>` is encoded as these characters.

        Args:
          text: The text.
          continues: Whether other text stands before it; then a tokenizer that puts a space in front of a text
            (SentencePiece's dummy prefix) does not.
        """

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> ChatPrompt:
        """A conversation in the model's own template, up to where the model is to go on.

        Args:
          messages: Role and content of each; their content is ordinary text.
          **options: Variables of the template, such as Qwen3's `enable_thinking`.

        Raises:
          UserError: there is no template, or it refuses these messages.
        """

    def decode(self, ids: TokenIds) -> str:
        """The text of `ids`, from the beginning of a text; an incomplete character is replaced by U+FFFD."""

    def decode_bytes(self, ids: TokenIds) -> bytes:
        """The bytes of `ids`, wherever they stand; a model's unused rows beyond the vocabulary stand for nothing."""

    def fingerprint(self) -> str:
        """A short hash, to tell whether two artefacts were made with the same tokenizer."""
