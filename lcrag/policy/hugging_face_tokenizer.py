"""Fast tokenizers of the `tokenizers` library (byte-level BPE, byte fallback, Unigram, WordPiece) and their folders."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers

from lcrag.errors import UserError
from lcrag.policy.model_files import read_optional_json, write_json_object
from lcrag.policy.token_bytes import Spelling, spelling_of, table_of
from lcrag.policy.tokenizer import ChatPrompt, ChatTemplate, Message, TokenIds, render_marked

_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A `Tokenizer` over the library's `backend`; `settings` are the rest of `tokenizer_config.json`, for export."""

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
        text, positions = render_marked(self.chat_template, messages, self.special_tokens, options)
        encoding = self.backend.encode(text, add_special_tokens=False)

        def forged(start: int, end: int) -> bool:
            return any(start <= position < end for position in positions)

        return ChatPrompt(
            text, self._without(encoding, text, forged, functools.partial(self.encode_ordinary, continues=True))
        )

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
        """Writes the files that `load_tokenizer` and `transformers` read; creates the folder."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        # without a class, transformers would build its own tokenizer of the model's family
        eos_token = self.backend.id_to_token(self.eos_ids[0])
        settings = dict(self.settings) or {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos_token}
        write_json_object(folder / "tokenizer_config.json", settings)
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template.source, encoding="utf-8")

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the attributes only: a copied backend no longer encodes special tokens as text."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return spelling_of(self.backend)

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The backend for ordinary text, in which special tokens are not recognised."""
        return _for_ordinary_text(self.backend.to_str())

    @functools.cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        """As `_plain` for text that continues another: no space is put in front of it."""
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
        """Returns the ids of an encoding; special ones whose span is `forged` are encoded again by `encode`."""
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
        """Encodes the first character separately, so the text as a whole is not recognised as a special token."""
        first = self._continuing.encode(text[:1], add_special_tokens=False).ids
        return first + self.encode_ordinary(text[1:], continues=True) if len(text) > 1 else first


def _for_ordinary_text(state: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(state)
    backend.encode_special_tokens = True
    return backend


def _without_prepending(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Removes from a normaliser the step that prepends to a text (Llama 2)."""
    if normalizer is None or normalizer["type"] == "Prepend":
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    return normalizer | {"normalizers": [each for each in normalizer["normalizers"] if each["type"] != "Prepend"]}


def _without_prefix(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Removes the space that a pre-tokeniser puts in front; words split earlier (T5) keep theirs."""
    match (pre_tokenizer or {}).get("type"):
        case "Metaspace":
            return {**(pre_tokenizer or {}), "prepend_scheme": "never"}
        case "ByteLevel":
            return {**(pre_tokenizer or {}), "add_prefix_space": False}
    return pre_tokenizer


def load_tokenizer(folder: str | pathlib.Path) -> HuggingFaceTokenizer:
    """Reads the tokenizer of a Hugging Face model folder.

    Only `tokenizer.json` is required. End-of-sequence ids are those of `generation_config.json`, `config.json` and
    `tokenizer_config.json`, in this order, else the token `<eos>`. The chat template is `chat_template.jinja`, or in
    `chat_template.json` or `tokenizer_config.json`.

    Raises:
      UserError: There is no `tokenizer.json`, a file cannot be read, or there is no end-of-sequence token.
    """
    folder = pathlib.Path(folder)
    backend = _read_backend(folder / "tokenizer.json")
    settings = read_optional_json(folder / "tokenizer_config.json")
    eos_ids = _eos_ids(folder, settings, backend)
    pad_id = _token_id(settings, "pad_token", backend)
    return HuggingFaceTokenizer(
        backend=backend,
        eos_ids=eos_ids,
        pad_id=eos_ids[0] if pad_id is None else pad_id,
        beginning_ids=_beginning_ids(settings, backend),
        chat_template=_chat_template(folder, settings),
        settings={name: value for name, value in settings.items() if name != "chat_template"},
    )


def _read_backend(path: pathlib.Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise UserError(
            f"no tokenizer in {path.parent}: expected the file tokenizer.json (a Hugging Face fast tokenizer)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise UserError(f"{path} is not a readable tokenizer: {error}") from error
    backend.no_truncation()  # many encoders are stored with both
    backend.no_padding()
    return backend


def _eos_ids(folder: pathlib.Path, settings: Mapping[str, Any], backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_optional_json(folder / name).get("eos_token_id")
        ids += [value] if isinstance(value, int) else list(value or ())
    named = _token_id(settings, "eos_token", backend)
    ids += [] if named is None else [named]
    if not ids and (token := backend.token_to_id("<eos>")) is not None:
        ids = [token]
    if not ids:
        raise UserError(f"{folder} names no end-of-sequence token: set eos_token_id in its generation_config.json")
    return tuple(dict.fromkeys(ids))


def _token(settings: Mapping[str, Any], name: str) -> str | None:
    """Returns the text of a named token; older files hold an object instead."""
    value = settings.get(name)
    return value["content"] if isinstance(value, dict) else value


def _token_id(settings: Mapping[str, Any], name: str, backend: tokenizers.Tokenizer) -> int | None:
    token = _token(settings, name)
    return None if token is None else backend.token_to_id(token)


def _beginning_ids(settings: Mapping[str, Any], backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Returns the ids that the settings, or else the tokenizer's post-processor, put before a text."""
    bos_id = _token_id(settings, "bos_token", backend)
    if settings.get("add_bos_token") is not None and (bos_id is not None or not settings["add_bos_token"]):
        return (bos_id,) if settings["add_bos_token"] and bos_id is not None else ()
    encoding = backend.encode("a", add_special_tokens=True)
    added = encoding.special_tokens_mask
    return tuple(encoding.ids[: added.index(0)]) if 0 in added else ()


def _chat_template(folder: pathlib.Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
    path, source = folder / "chat_template.jinja", None
    if path.is_file():
        source = path.read_text(encoding="utf-8")
    else:
        source = read_optional_json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(source, list):  # several templates by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    if not source:
        return None
    tokens = {name: _token(settings, name) for name in _NAMED_TOKENS}
    return ChatTemplate(source, {name: token for name, token in tokens.items() if token is not None})
