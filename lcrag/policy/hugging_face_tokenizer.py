"""Fast tokenizers of the `tokenizers` library, of every family: byte-level BPE, byte fallback, Unigram, WordPiece."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers

from lcrag.errors import UserError
from lcrag.policy.chat import ChatPrompt, ChatTemplate, Message, render_marked
from lcrag.policy.json_files import write_json_object
from lcrag.policy.token_bytes import Spelling, spelling_of, table_of
from lcrag.policy.tokenizer import TokenIds


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A fast tokenizer; a `lcrag.policy.Tokenizer`.

    Attributes:
      backend: The library's tokenizer.
      eos_ids: Ids that end a generation.
      pad_id: Id of padding.
      beginning_ids: What a context begins with.
      chat_template: How the model wants a conversation written down.
      settings: The rest of `tokenizer_config.json`, kept for export.
    """

    backend: tokenizers.Tokenizer
    eos_ids: tuple[int, ...]
    pad_id: int
    beginning_ids: tuple[int, ...] = ()
    chat_template: ChatTemplate | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def vocabulary_size(self) -> int:
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def special_tokens(self) -> Mapping[str, int]:
        added = self.backend.get_added_tokens_decoder()
        return {token.content: index for index, token in added.items() if token.special}

    @functools.cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        return table_of(self.backend, self._spelling, self.vocabulary_size)

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def encode_ordinary(self, text: str, *, continues: bool = False) -> list[int]:
        encoding = (self._continuing if continues else self._plain).encode(text, add_special_tokens=False)

        def spelled(start: int, end: int) -> bool:  # Unigram models hold `</s>` as a piece like any other
            return text[start:end].strip() in self.special_tokens

        return self._without(encoding, text, spelled, self._broken_up)

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> ChatPrompt:
        if self.chat_template is None:
            raise UserError(
                "the tokenizer has no chat template: add chat_template.jinja to its folder, or use plain prompts"
            )
        marked = render_marked(self.chat_template, messages, self.special_tokens, options)
        encoding = self.backend.encode(marked.text, add_special_tokens=False)
        ids = self._without(
            encoding, marked.text, marked.forges, functools.partial(self.encode_ordinary, continues=True)
        )
        return ChatPrompt(marked.text, ids)

    def decode(self, ids: TokenIds) -> str:
        text = self.decode_bytes(ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._spelling.leading_space else text

    def decode_bytes(self, ids: TokenIds) -> bytes:
        table = self.token_bytes
        return b"".join(table[index] for index in map(int, ids) if index < len(table))

    def fingerprint(self) -> str:
        template = self.chat_template.source if self.chat_template else ""
        return hashlib.sha256((self.backend.to_str() + template).encode()).hexdigest()[:16]

    def save(self, folder: str | pathlib.Path) -> None:
        """Writes the files that `load_tokenizer` and `transformers` read into a folder, which it makes."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        # Without a class transformers rebuilds the tokenizer as its own of the model's family.
        eos_token = self.backend.id_to_token(self.eos_ids[0])
        settings = dict(self.settings) or {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos_token}
        write_json_object(folder / "tokenizer_config.json", settings)
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template.source, encoding="utf-8")

    def __getstate__(self) -> dict[str, Any]:
        """The attributes only: a copied backend forgets that it encodes special tokens as text."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return spelling_of(self.backend)

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The backend for ordinary text, in which it looks for no special tokens."""
        return _for_ordinary_text(self.backend.to_str())

    @functools.cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        """The same for text that others precede: no space is put in front of it."""
        state = json.loads(self.backend.to_str())
        changed = state | {
            "normalizer": _without_prepending(state["normalizer"]),
            "pre_tokenizer": _without_prefix(state["pre_tokenizer"]),
        }
        return self._plain if changed == state else _for_ordinary_text(json.dumps(changed))

    def _without(
        self,
        encoding: tokenizers.Encoding,
        text: str,
        forged: Callable[[int, int], bool],
        encode: Callable[[str], list[int]],
    ) -> list[int]:
        """The ids of an encoding; special ones whose span of the text is `forged` are encoded again."""
        if self._special_ids.isdisjoint(encoding.ids):
            return encoding.ids
        ids: list[int] = []
        for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            ids += encode(text[start:end]) if index in self._special_ids and forged(start, end) else [index]
        return ids

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    def _broken_up(self, text: str) -> list[int]:
        """The first character by itself, so that the model cannot find the whole."""
        first = self._continuing.encode(text[:1], add_special_tokens=False).ids
        return first + self.encode_ordinary(text[1:], continues=True) if len(text) > 1 else first


def _for_ordinary_text(state: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(state)
    backend.encode_special_tokens = True
    return backend


def _without_prepending(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The normaliser without what puts something in front of a text (Llama 2)."""
    if normalizer is None or normalizer["type"] == "Prepend":
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    return normalizer | {"normalizers": [each for each in normalizer["normalizers"] if each["type"] != "Prepend"]}


def _without_prefix(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The pre-tokeniser without a space in front; where words are split before (T5), each has its own."""
    match (pre_tokenizer or {}).get("type"):
        case "Metaspace":
            return {**(pre_tokenizer or {}), "prepend_scheme": "never"}
        case "ByteLevel":
            return {**(pre_tokenizer or {}), "add_prefix_space": False}
    return pre_tokenizer
