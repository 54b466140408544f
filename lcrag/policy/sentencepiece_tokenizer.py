"""Tokenizers from SentencePiece models, such as those of seqio and T5X vocabularies."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from lcrag.errors import UserError
from lcrag.policy.tokenizer import ChatPrompt, Message, TokenIds, bytes_of_ids

_SPACE = "▁"
_SENTINEL = re.compile(f"{_SPACE}?<extra_id_\\d+>")  # of T5; seqio adds them as user-defined symbols


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer:
    """A `Tokenizer` over a serialised SentencePiece model."""

    model: bytes
    eos_ids: tuple[int, ...]
    pad_id: int
    beginning_ids: tuple[int, ...] = ()

    @property
    def chat_template(self) -> None:
        return None

    @property
    def vocabulary_size(self) -> int:
        return len(self._proto.pieces)

    @functools.cached_property
    def special_tokens(self) -> Mapping[str, int]:
        kinds = (ModelProto.SentencePiece.CONTROL, ModelProto.SentencePiece.UNKNOWN)
        return {piece.piece: index for index, piece in enumerate(self._proto.pieces) if piece.type in kinds}

    @functools.cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        def bytes_of(piece: ModelProto.SentencePiece) -> bytes:
            if piece.type == ModelProto.SentencePiece.BYTE:  # "<0x0A>"
                return bytes([int(piece.piece[3:5], 16)])
            unused = piece.type == ModelProto.SentencePiece.UNUSED
            return b"" if unused else piece.piece.replace(_SPACE, " ").encode()

        return tuple(map(bytes_of, self._proto.pieces))

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def encode_ordinary(self, text: str, *, continues: bool = False) -> list[int]:
        # without the dummy prefix before it, the model would remove the text's first space
        loses_space = self._proto.normalizer_spec.remove_extra_whitespaces and text[:1].isspace()
        return (self._inside if continues and not loses_space else self._plain).encode(text)

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> ChatPrompt:
        raise UserError("a SentencePiece model has no chat template: use plain prompts, or a Hugging Face tokenizer")

    def decode(self, ids: TokenIds) -> str:
        text = self.decode_bytes(ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._proto.normalizer_spec.add_dummy_prefix else text

    def decode_bytes(self, ids: TokenIds) -> bytes:
        return bytes_of_ids(ids, self.token_bytes)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()[:16]

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the attributes only, without the cached properties."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _proto(self) -> ModelProto:
        """The model with sentinels as control tokens, to which no text is encoded."""
        proto = ModelProto.FromString(self.model)
        for piece in proto.pieces:
            if _SENTINEL.fullmatch(piece.piece):
                piece.type = ModelProto.SentencePiece.CONTROL
        return proto

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def _plain(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self._proto.SerializeToString())

    @functools.cached_property
    def _inside(self) -> sentencepiece.SentencePieceProcessor:
        """As `_plain` without the dummy prefix, for text that continues another."""
        proto = ModelProto.FromString(self._proto.SerializeToString())
        proto.normalizer_spec.add_dummy_prefix = False
        return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def vocabulary_tokenizer(vocabulary: object) -> SentencePieceTokenizer:
    """Makes a tokenizer from a `seqio.SentencePieceVocabulary`."""
    model: bytes | None = getattr(vocabulary, "sp_model", None)
    if model is None:
        raise UserError(
            f"{type(vocabulary).__name__} holds no SentencePiece model: use a seqio.SentencePieceVocabulary"
        )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    eos_id, pad_id = processor.eos_id(), processor.pad_id()
    if eos_id < 0:
        raise UserError("the SentencePiece model has no end-of-sequence token: train it with eos_id set")
    return SentencePieceTokenizer(model, (eos_id,), eos_id if pad_id < 0 else pad_id)
