"""Tokenizers of the library `tokenizers`, read from model folders, and chat templates.

Byte-level BPE, byte fallback, Unigram and WordPiece are supported.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tokenizers

from lcrag.errors import UserError
from lcrag.files import check_manifest, read_optional_json, write_json

TokenIds: TypeAlias = Sequence[int] | np.ndarray
Message: TypeAlias = Mapping[str, Any]

# Llama 3.1 and later write the date into the system turn and fall back to this one. A prompt that depends on the date
# could not be sampled again.
TODAY = datetime.datetime(2024, 7, 26)
# What a file may store as an ordinary token though it is a control token. `</s>` is not among them: in Gemma's
# vocabulary it is HTML.
CONTROL = re.compile(
    r"<[|｜][^<>]+>|<[^<>]+[|｜]>|_?<EOT>|\[(?:EOT|EOS)\]|<(?:bos|eos|pad|(?:start|end)_of_(?:turn|image|utterance))>"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT)\]"
)
# Control tokens that end a generation, whatever a file declares, as in llama.cpp's src/llama-vocab.cpp.
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"),
    *("<eos>", "</s>", "<EOT>", "_<EOT>", "<|EOT|>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    *("<turn|>", "<|return|>", "<|call|>"),
)
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # reserved by Unicode for internal use


# A conversation in which templates are tried; the reply occurs in no other text.
QUESTION = {"role": "user", "content": "Where is Turku?"}
REPLY = {"role": "assistant", "content": "\ufdef"}
_THOUGHT_NAME = r"(?:\w+:)?(?:think|thought|reason|reflect|analysis|scratch)\w*"
_THOUGHT = re.compile(rf"([<\[◁])({_THOUGHT_NAME}[>\]▷])(?!.*\1/\2)", re.IGNORECASE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation and its tokens."""

    text: str
    ids: list[int]


class Conversation(NamedTuple):
    """What a chat template writes around the turns of a conversation; empty without a template."""

    opens: str = ""  # between a user's message and the model's text, such as the beginning of a thought
    closes: str = ""  # after the model's text; empty if the template writes openings only
    system: str = ""  # the default system message

    @property
    def thought(self) -> str | None:
        """The tag of the thought that the template leaves open, such as `<think>`."""
        return found[0] if (found := _THOUGHT.search(self.opens)) else None

    def end(self, tokens: Iterable[str]) -> str | None:
        """Returns which of some tokens ends the model's turn, after white space at most."""
        return max((name for name in tokens if name and self.closes.lstrip().startswith(name)), key=len, default=None)


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template of `transformers`."""

    source: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # such as `bos_token`

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """Renders a conversation in a sandbox, up to where the model continues."""
        from transformers.utils import chat_template_utils

        variables: dict[str, Any] = {
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            "strftime_now": TODAY.strftime,  # in place of the library's clock
            "date_string": TODAY.strftime("%d %b %Y"),
            **self.variables,
            **options,
        }
        try:
            # The library's public function passes no functions to a template.
            template = chat_template_utils._compile_jinja_template(self.source)
            return template.render(messages=[dict(message) for message in messages], **variables)
        except Exception as error:  # a template's expressions may raise anything
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"the model's chat template refuses a conversation of {roles}: {error}; change Chat.system, or write"
                " prompts without a template by Chat.template = False"
            ) from error

    def conversation(self, **options: Any) -> Conversation:
        """Returns what the template writes around turns, as it shows in a short conversation."""

        def rendered(*messages: Message, **more: Any) -> str:
            with contextlib.suppress(UserError):  # it may lack a role
                return self.render(messages, **options, **more)
            return ""

        asked = rendered(QUESTION)
        before, _, after = rendered({**REPLY, "role": "system"}, QUESTION).partition(REPLY["content"])
        has_default = after and asked.startswith(before) and asked.endswith(after)
        return Conversation(
            asked.rpartition(QUESTION["content"])[2],
            rendered(QUESTION, REPLY, add_generation_prompt=False).partition(REPLY["content"])[2],
            asked[len(before) : len(asked) - len(after)].strip() if has_default else "",
        )


DECODERS = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece")
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
WORD_PIECE_PUNCTUATION = frozenset(".?!,")  # its clean-up removes the space before them
Step = Mapping[str, Any]  # one decoder of a tokenizer, as the library writes it


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the library, its `backend`, as sampling, episodes and learning use it.

    Use `encode_ordinary` for external text: it never produces control tokens. `encode` is for text that may contain
    them, such as hand-written prompts.
    """

    backend: tokenizers.Tokenizer
    eos_ids: tuple[int, ...]  # end a generation; the preferred one first
    pad_id: int  # masks, not ids, determine what is padding
    beginning_ids: tuple[int, ...] = ()  # begin every context, such as Llama's begin-of-text
    chat_template: ChatTemplate | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of `tokenizer_config.json`, for export

    @functools.cached_property
    def vocabulary_size(self) -> int:
        """The largest id plus one; a model may have more embedding rows."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Control tokens, which ordinary text is never encoded to."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: index for index, token in added.items() if token.special}

    @functools.cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The bytes of each id; bytes, because a token may hold a part of a character."""
        # The characters by which byte-level BPE vocabularies (GPT-2, Qwen, Llama 3) print bytes.
        printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
        others = [byte for byte in range(256) if byte not in printable]
        byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
        is_byte_level = any(step["type"] == "ByteLevel" for step in self._decoders)

        def bytes_of(token: str) -> bytes:
            """Returns the bytes of a token that is not the first of its text."""
            if is_byte_level:
                known = all(character in byte_of for character in token)
                return bytes(byte_of[character] for character in token) if known else token.encode()
            if not self._decoders:
                return b" " + token.encode()
            for step in self._decoders:
                match step["type"]:
                    case "ByteFallback" if byte := BYTE_TOKEN.fullmatch(token):
                        return bytes([int(byte[1], 16)])
                    case "Metaspace":
                        token = token.replace(step["replacement"], " ")
                    case "Replace":
                        token = token.replace(step["pattern"]["String"], step["content"])
                    case "WordPiece" if token.startswith(step["prefix"]):
                        token = token.removeprefix(step["prefix"])
                    case "WordPiece" if not (step["cleanup"] and token in WORD_PIECE_PUNCTUATION):
                        token = f" {token}"
            return token.encode()

        table = [b""] * self.vocabulary_size
        for token, index in self.backend.get_vocab(with_added_tokens=True).items():
            table[index] = bytes_of(token)
        if is_byte_level:  # added tokens are stored as plain text
            for index, added in self.backend.get_added_tokens_decoder().items():
                table[index] = added.content.encode()
        return tuple(table)

    def encode(self, text: str) -> list[int]:
        """Encodes a text as the library does, control tokens included; adds nothing at either end."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_ordinary(self, text: str, *, continues: bool = False) -> list[int]:
        """Encodes external text, without control tokens: `<|im_end|>` or `</s>` is encoded as these characters.

        With `continues`, other text precedes it: no space is put in front, as Llama 2 and Metaspace do.
        """
        encoding = (self._continuing if continues else self._plain).encode(text, add_special_tokens=False)

        def is_written(index: int, start: int, end: int) -> bool:
            """Unigram models hold `</s>` as a piece like any other, which a normalised text may spell: `＜／s＞`."""
            return index != self._unknown_id or text[start:end].strip() in self.special_tokens

        def break_up(text: str) -> list[int]:
            """Encodes the first character separately, or all where that leaves a special token, or none at last."""
            special = {*self.special_tokens.values()} - {self._unknown_id}
            ids: list[int] = []
            for parts in ((text[:1], text[1:]), text):
                encodings = [self._continuing.encode(part, add_special_tokens=False) for part in parts]
                ids = [index for encoding in encodings for index in encoding.ids]
                if special.isdisjoint(ids):
                    return ids
            return [index for index in ids if index not in special]

        return self._replace_special(encoding, text, is_written, break_up)

    def encode_chat(self, messages: Sequence[Message], *, after: str = "", **options: Any) -> ChatPrompt:
        """Encodes a conversation in the model's template, up to where the model continues.

        Messages have a role and a content, which is ordinary text; `options` are variables of the template, such as
        Qwen3's `enable_thinking`. Only what follows the first occurrence of the text `after` is returned; a `UserError`
        is raised if the template writes no such text.
        """
        if self.chat_template is None:
            raise UserError("the tokenizer has no chat template: add chat_template.jinja, or use plain prompts")
        # Where contents spell a control token, they are marked by a character that occurs nowhere else.
        whole = "".join(message["content"] for message in messages)
        mark = next(character for character in _NONCHARACTERS if character not in whole)
        spelled = re.compile("(?=" + "|".join(map(re.escape, self.special_tokens)) + ")")
        mark_in = functools.partial(spelled.sub, mark) if self.special_tokens else str
        marked = [{**message, "content": mark_in(message["content"])} for message in messages]
        pieces = self.chat_template.render(marked, **options).split(mark)
        text = "".join(pieces)
        if after not in text:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(f"the model's chat template writes only a part of a conversation of {roles}")
        start = text.index(after) + len(after)
        text = text[start:]
        positions = (np.cumsum([len(piece) for piece in pieces[:-1]], dtype=int) - start).tolist()
        encoding = self.backend.encode(text, add_special_tokens=False)

        def is_forged(index: int, start: int, end: int) -> bool:
            """The template's own control tokens are spelled as they are; what a normaliser makes of a text is not."""
            spelled_out = index == self._unknown_id or text[start:end].strip() in self.special_tokens
            return not spelled_out or any(start <= position < end for position in positions)

        as_text = functools.partial(self.encode_ordinary, continues=True)
        return ChatPrompt(text, self._replace_special(encoding, text, is_forged, as_text))

    def _replace_special(
        self,
        encoding: tokenizers.Encoding,
        text: str,
        replaced: Callable[[int, int, int], bool],
        encode: Callable[[str], list[int]],
    ) -> list[int]:
        """Returns the ids of an encoding; special ones for which `replaced(id, start, end)` holds are encoded again."""
        special = frozenset(self.special_tokens.values())
        if special.isdisjoint(encoding.ids):
            return encoding.ids
        ids: list[int] = []
        for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            ids += encode(text[start:end]) if index in special and replaced(index, start, end) else [index]
        return ids

    def decode(self, ids: TokenIds) -> str:
        """Decodes ids from the beginning of a text; incomplete characters become U+FFFD."""
        text = self.decode_bytes(ids).decode("utf-8", errors="replace")
        drops_space = not self._decoders or any(  # before the first token of a text
            step["type"] == "WordPiece"
            or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
            or (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
            for step in self._decoders
        )
        return text.removeprefix(" ") if drops_space else text

    def decode_bytes(self, ids: TokenIds) -> bytes:
        """Decodes ids anywhere in a text to bytes; ids beyond the vocabulary have none."""
        return b"".join(self.token_bytes[index] for index in map(int, ids) if index < self.vocabulary_size)

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
        write_json(folder / "tokenizer_config.json", settings)
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template.source, encoding="utf-8")

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the attributes only: a copied backend no longer encodes special tokens as text."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _decoders(self) -> tuple[Step, ...]:
        if self.backend.decoder is None:
            return ()
        decoder = json.loads(self.backend.decoder.__getstate__())
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        for step in steps:
            if step["type"] not in DECODERS or (step["type"] == "Replace" and "String" not in step["pattern"]):
                raise UserError(
                    f"tokenizers with the decoder {step['type']} are not supported: the bytes of a token are not"
                    f" defined; supported are {', '.join(DECODERS)}"
                )
        return tuple(steps)

    @functools.cached_property
    def _unknown_id(self) -> int | None:
        """The id of what the vocabulary cannot write; None if it can write everything, or would end a text instead."""
        model = json.loads(self.backend.to_str())["model"]
        token = model.get("unk_token")
        index = model.get("unk_id") if token is None else self.backend.token_to_id(token)
        return None if index in self.eos_ids else index

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The backend for ordinary text, in which special tokens are not recognised."""
        return _for_ordinary_text(self.backend.to_str())

    @functools.cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        """As `_plain` for text that continues another: no space is put in front of it."""
        state = json.loads(self.backend.to_str())
        normalizer, splitter = state["normalizer"], state["pre_tokenizer"]
        match (normalizer or {}).get("type"):
            case "Prepend":  # Llama 2
                normalizer = None
            case "Sequence":
                kept = [step for step in normalizer["normalizers"] if step["type"] != "Prepend"]
                normalizer = {**normalizer, "normalizers": kept}
        match (splitter or {}).get("type"):  # words split earlier (T5) keep their space
            case "Metaspace":
                splitter = {**splitter, "prepend_scheme": "never"}
            case "ByteLevel":
                splitter = {**splitter, "add_prefix_space": False}
        changed = state | {"normalizer": normalizer, "pre_tokenizer": splitter}
        return self._plain if changed == state else _for_ordinary_text(json.dumps(changed))


def _for_ordinary_text(state: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(state)
    backend.encode_special_tokens = True
    return backend


def load_tokenizer(folder: str | pathlib.Path) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face model folder.

    Only `tokenizer.json` is required. End-of-sequence ids are those of `tokenizer_config.json`, which ends a chat
    model's turn, `generation_config.json` and `config.json`, in this order, then the control tokens that end a turn by
    their name (`ENDS`) or in the chat template. Added tokens that the files name or that the template writes as
    control tokens are made special, so that ordinary text is not encoded to them. The chat template
    is `chat_template.jinja`, or in `chat_template.json` or `tokenizer_config.json`; of several, it is the one named
    "default".
    """
    folder = pathlib.Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"no tokenizer in {folder}: expected the file tokenizer.json (a Hugging Face fast tokenizer)")
    check_manifest(folder, skip=r"\.safetensors$")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise UserError(f"{path} is not a readable tokenizer: {error}") from error
    backend.no_truncation()  # many encoders are stored with both
    backend.no_padding()
    settings = read_optional_json(folder / "tokenizer_config.json")

    def named(name: str) -> str | None:
        """Returns the text of a named token; older files hold an object instead."""
        value = settings.get(name)
        return value["content"] if isinstance(value, dict) else value

    def id_of(name: str) -> int | None:
        token = named(name)
        return None if token is None else backend.token_to_id(token)

    # the ids that end a generation, the preferred one first
    vocabulary = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    named_id = id_of("eos_token")
    eos_ids = [] if named_id is None else [named_id]
    for name in ("generation_config.json", "config.json"):
        value = read_optional_json(folder / name).get("eos_token_id")
        ids = [value] if isinstance(value, int) else list(value or ())
        if unknown := [token for token in ids if not (isinstance(token, int) and 0 <= token < vocabulary)]:
            raise UserError(
                f"{folder / name} has the eos_token_id {unknown[0]}, but the tokenizer has {vocabulary} tokens: correct"
                " the id, or use the tokenizer of this model"
            )
        eos_ids += ids
    # the ids that the settings, or else the tokenizer's post-processor, put before a text
    bos_id, adds_bos = id_of("bos_token"), settings.get("add_bos_token")
    if adds_bos is not None and (bos_id is not None or not adds_bos):
        beginning_ids = [bos_id] if adds_bos and bos_id is not None else []
    else:
        encoding = backend.encode("a", add_special_tokens=True)
        added = encoding.special_tokens_mask
        beginning_ids = encoding.ids[: added.index(0)] if 0 in added else []

    template = folder / "chat_template.jinja"
    source: Any = read_optional_json(folder / "chat_template.json").get("chat_template")
    source = template.read_text(encoding="utf-8") if template.is_file() else source or settings.get("chat_template")
    if isinstance(source, list):  # several templates by name
        by_name = {template["name"]: template["template"] for template in source}
        if "default" not in by_name:
            raise UserError(
                f'{folder} has chat templates named {", ".join(by_name)}, but no default: rename one to "default", or'
                " write it to chat_template.jinja"
            )
        source = by_name["default"]
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    variables = {name: token for name in names if (token := named(name)) is not None}
    chat_template = ChatTemplate(source, variables) if source else None

    # control tokens, and those of them that end a turn
    conversation = chat_template.conversation() if chat_template else Conversation()
    stored = backend.get_added_tokens_decoder().values()
    end = conversation.end(entry.content for entry in stored if entry.content.startswith(("<", "[")))
    declared = {end, *map(named, names[:3])}
    written = "".join((source or "", conversation.opens, conversation.closes, *ENDS))
    for entry in stored:
        is_control = entry.content in declared or (CONTROL.fullmatch(entry.content) and entry.content in written)
        if is_control and not entry.special:
            entry.special = True
            backend.add_special_tokens([entry])
    special = {entry.content: index for index, entry in backend.get_added_tokens_decoder().items() if entry.special}
    eos_ids += [special[name] for name in (conversation.end(special), *ENDS) if name in special]
    if not eos_ids and (bare_id := backend.token_to_id("<eos>")) is not None:
        eos_ids.append(bare_id)
    if not eos_ids:
        raise UserError(f"{folder} names no end-of-sequence token: set eos_token_id in its generation_config.json")
    pad_id = id_of("pad_token")
    return Tokenizer(
        backend=backend,
        eos_ids=tuple(dict.fromkeys(eos_ids)),
        pad_id=eos_ids[0] if pad_id is None else pad_id,
        beginning_ids=tuple(beginning_ids),
        chat_template=chat_template,
        settings={name: value for name, value in settings.items() if name != "chat_template"},
    )
