"""One small interface to tokenizers: encode, decode, the bytes of a token, the special ids."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tokenizers

from lcrag.errors import UserError

TokenIds: TypeAlias = Sequence[int] | np.ndarray


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE vocabularies (GPT-2, Qwen, Llama 3) use for bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A byte-level BPE tokenizer of the `tokenizers` library.

    Attributes:
      backend: The underlying tokenizer.
      eos_ids: Ids that end a generation; the first one is used when a single one is wanted.
      pad_id: Id of padding; it never carries meaning, masks say what is padding.
    """

    backend: tokenizers.Tokenizer
    eos_ids: tuple[int, ...]
    pad_id: int

    @property
    def vocabulary_size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; nothing is added at either end."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: TokenIds) -> str:
        """The text of `ids`: their bytes as UTF-8, an incomplete character replaced by U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: TokenIds) -> bytes:
        """The bytes of `ids`; a model's unused rows beyond the vocabulary stand for nothing."""
        table = self.token_bytes
        return b"".join(table[index] for index in map(int, ids) if index < len(table))

    @functools.cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The bytes that each id of the vocabulary stands for."""
        added = self.backend.get_added_tokens_decoder()
        table = _bytes_of_characters()

        def bytes_of(index: int) -> bytes:
            if index in added:
                return added[index].content.encode()
            token = self.backend.id_to_token(index)
            return b"" if token is None else bytes(table[character] for character in token)

        return tuple(bytes_of(index) for index in range(self.vocabulary_size))

    def fingerprint(self) -> str:
        """A short hash of the vocabulary, to tell whether two artefacts were made with the same tokenizer."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()[:16]


def load_tokenizer(folder: str | pathlib.Path) -> Tokenizer:
    """Reads `tokenizer.json` and the end-of-sequence ids from a model folder.

    Raises:
      UserError: the folder has no `tokenizer.json`, or it cannot be read.
    """
    folder = pathlib.Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"no tokenizer in {folder}: expected the file tokenizer.json (a Hugging Face fast tokenizer)")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise UserError(f"{path} is not a readable tokenizer: {error}") from error
    eos_ids = _eos_ids(folder, backend)
    return Tokenizer(backend=backend, eos_ids=eos_ids, pad_id=eos_ids[0])


def _eos_ids(folder: pathlib.Path, backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = json.loads((folder / name).read_text()).get("eos_token_id")
            ids += [value] if isinstance(value, int) else list(value or ())
    if not ids and (token := backend.token_to_id("<eos>")) is not None:
        ids = [token]
    if not ids:
        raise UserError(f"{folder} names no end-of-sequence token: set eos_token_id in its generation_config.json")
    return tuple(dict.fromkeys(ids))


def pad(rows: Sequence[Sequence[int]], length: int, value: int = 0, dtype=np.int32) -> np.ndarray:
    """Right-pads rows to `[len(rows), length]`; a longer row is an error."""
    out = np.full((len(rows), length), value, dtype)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out
