"""Reading the tokenizer of a model folder: its vocabulary, end-of-sequence ids and chat template."""

import pathlib
from collections.abc import Mapping
from typing import Any

import tokenizers

from lcrag.errors import UserError
from lcrag.policy.chat import ChatTemplate
from lcrag.policy.hugging_face_tokenizer import HuggingFaceTokenizer
from lcrag.policy.json_files import read_optional_json

_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def load_tokenizer(folder: str | pathlib.Path) -> HuggingFaceTokenizer:
    """Reads the tokenizer of a Hugging Face model folder.

    Only `tokenizer.json` must be there. The end-of-sequence ids are all that `generation_config.json`, `config.json`
    and `tokenizer_config.json` name, in this order; a folder without any of them may hold a token `<eos>`. The chat
    template is `chat_template.jinja`, or else in `chat_template.json` or `tokenizer_config.json`.

    Raises:
      UserError: there is no `tokenizer.json`, a file cannot be read, or no end-of-sequence token is named.
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
    backend.no_truncation()  # encoders are often stored with both
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
    """A named token; older files hold an object in place of its text."""
    value = settings.get(name)
    return value["content"] if isinstance(value, dict) else value


def _token_id(settings: Mapping[str, Any], name: str, backend: tokenizers.Tokenizer) -> int | None:
    token = _token(settings, name)
    return None if token is None else backend.token_to_id(token)


def _beginning_ids(settings: Mapping[str, Any], backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What the folder puts before a text: by its settings, or by the tokenizer's own post-processor."""
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
    if isinstance(source, list):  # several by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    if not source:
        return None
    tokens = {name: _token(settings, name) for name in _NAMED_TOKENS}
    return ChatTemplate(source, {name: token for name, token in tokens.items() if token is not None})
