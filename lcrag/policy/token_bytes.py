"""The bytes of each token of a vocabulary, derived from the decoder of the `tokenizers` library.

Bytes rather than text, because a token may hold a part of a character and stop strings are matched in bytes.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

from lcrag.errors import UserError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PUNCTUATION = frozenset(".?!,")  # WordPiece's clean-up removes the space before them
_SUPPORTED = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece")


@functools.cache
def bytes_of_characters() -> dict[str, int]:
    """Maps the printable characters of byte-level BPE vocabularies (GPT-2, Qwen, Llama 3) to bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


@dataclasses.dataclass(frozen=True)
class Spelling:
    """How the tokens of a vocabulary are decoded: the library's decoders, in order."""

    steps: tuple[Mapping[str, Any], ...]

    @property
    def byte_level(self) -> bool:
        return any(step["type"] == "ByteLevel" for step in self.steps)

    @property
    def leading_space(self) -> bool:
        """Whether decoding a text drops the space before its first token."""
        return not self.steps or any(map(_drops_leading_space, self.steps))

    def bytes_of(self, token: str) -> bytes:
        """Returns the bytes of a token that is not the first of its text."""
        if self.byte_level:
            return _byte_level(token)
        if not self.steps:
            return b" " + token.encode()
        for step in self.steps:
            match step["type"]:
                case "ByteFallback" if byte := _BYTE.fullmatch(token):
                    return bytes([int(byte[1], 16)])
                case "Metaspace":
                    token = token.replace(step["replacement"], " ")
                case "Replace":
                    token = token.replace(step["pattern"]["String"], step["content"])
                case "WordPiece":
                    token = _word_piece(token, step)
        return token.encode()


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    """Reads the spelling of a tokenizer's vocabulary from its decoder.

    Raises:
      UserError: The decoder is of a kind that does not decode tokens one by one.
    """
    if backend.decoder is None:
        return Spelling(())
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    for step in steps:
        if step["type"] not in _SUPPORTED or (step["type"] == "Replace" and "String" not in step["pattern"]):
            raise UserError(
                f"tokenizers with the decoder {step['type']} are not supported: the bytes of a token are not defined;"
                f" supported are {', '.join(_SUPPORTED)}"
            )
    return Spelling(tuple(steps))


def table_of(backend: tokenizers.Tokenizer, spelling: Spelling, size: int) -> tuple[bytes, ...]:
    """Returns the bytes of every id below `size`; ids without a token have none."""
    table = [b""] * size
    for token, index in backend.get_vocab(with_added_tokens=True).items():
        table[index] = spelling.bytes_of(token)
    if spelling.byte_level:  # added tokens are stored as plain text
        for index, added in backend.get_added_tokens_decoder().items():
            table[index] = added.content.encode()
    return tuple(table)


def _byte_level(token: str) -> bytes:
    table = bytes_of_characters()
    try:
        return bytes(table[character] for character in token)
    except KeyError:
        return token.encode()


def _word_piece(token: str, step: Mapping[str, Any]) -> str:
    if token.startswith(step["prefix"]):
        return token.removeprefix(step["prefix"])
    return token if step["cleanup"] and token in _PUNCTUATION else f" {token}"


def _drops_leading_space(step: Mapping[str, Any]) -> bool:
    return (
        step["type"] == "WordPiece"
        or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
        or (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
    )
