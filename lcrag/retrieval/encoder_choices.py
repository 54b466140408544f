"""Which pooling, prefixes and longest text an encoder's folder asks for, and which file of it says so.

In the order of what is believed: the caller, the files of the `sentence-transformers` library, the conventions of a
known name, and at last that library's own defaults (or, in a folder that is not of its making, E5's).
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from lcrag.errors import UserError
from lcrag.policy.json_files import read_optional_json
from lcrag.retrieval.bert_config import BertConfig
from lcrag.retrieval.encoder_conventions import Convention, convention_of
from lcrag.retrieval.encoder_modules import EncoderModules, read_pooling
from lcrag.retrieval.encoder_settings import EncoderSettings

PROMPTS_FILE = "config_sentence_transformers.json"
TOKENIZER_FILE = "tokenizer_config.json"
# The names that a query's and a passage's prompt have in PROMPTS_FILE, the first that is there being taken.
_PROMPT_NAMES = {"query": ("query",), "passage": ("passage", "document", "corpus")}
# A tokenizer without a longest text says 1e30.
_NO_LIMIT_TOKENS = 1 << 24

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Choice(Generic[Value]):
    """A value, who said so, and whether that was no more than a guess."""

    value: Value
    source: str
    guessed: bool = False

    def __str__(self) -> str:
        return f"{self.value!r} ({self.source})"


@dataclasses.dataclass(frozen=True)
class Choices:
    """What was chosen for the encoder of a folder, setting by setting."""

    pooling: Choice[str]
    query_prefix: Choice[str]
    passage_prefix: Choice[str]
    max_tokens: Choice[int]

    @property
    def guessed(self) -> bool:
        """Whether something is said by neither the caller nor a file."""
        return any(choice.guessed for choice in vars(self).values())

    @property
    def settings(self) -> EncoderSettings:
        return EncoderSettings(**{name: choice.value for name, choice in vars(self).items()})

    def __str__(self) -> str:
        return ", ".join(f"{name} {choice}" for name, choice in vars(self).items())


def choose(folder: pathlib.Path, config: BertConfig, modules: EncoderModules, given: Mapping[str, Any]) -> Choices:
    """Decides each setting that the caller left open.

    Args:
      folder: The encoder's folder.
      config: Its body.
      modules: Its parts.
      given: What the caller said, by the names of `EncoderSettings`; None leaves a setting open.

    Raises:
      UserError: a file asks for what is not supported, or cannot be read.
    """
    convention = convention_of(folder, modules.body)
    prompts = _prompts(folder)
    said = {name: Choice(value, "given") for name, value in given.items() if value is not None}

    def prefix(kind: str) -> Choice[str]:
        return _stated_prefix(prompts, kind) or _guessed_prefix(kind, convention, modules)

    choices = Choices(
        pooling=said.get("pooling") or _pooling(modules, convention),
        query_prefix=said.get("query_prefix") or prefix("query"),
        passage_prefix=said.get("passage_prefix") or prefix("passage"),
        max_tokens=said.get("max_tokens") or _max_tokens(modules, config),
    )
    if modules.leaves_out_prompts and (choices.query_prefix.value or choices.passage_prefix.value):
        raise UserError(
            f"{modules.pooling} leaves the prefix out of the pooling (include_prompt), which is not supported:"
            " give empty prefixes, or choose another encoder"
        )
    return choices


def _pooling(modules: EncoderModules, convention: Convention | None) -> Choice[str]:
    if modules.pooling:
        return Choice(read_pooling(modules.pooling), f"{modules.pooling.parent.name}/{modules.pooling.name}")
    if convention:
        return Choice(convention.pooling, f"the convention of {convention.family}", guessed=True)
    return Choice("mean", "the default", guessed=True)


def _prompts(folder: pathlib.Path) -> dict[str, Any]:
    prompts = read_optional_json(folder / PROMPTS_FILE).get("prompts") or {}
    if not isinstance(prompts, dict):
        raise UserError(f"{folder / PROMPTS_FILE}: prompts is {prompts!r}, not a table from names to texts")
    # What the library writes for a model of which nobody ever named a prompt: it says nothing.
    return {} if prompts == {"query": "", "document": ""} else prompts


def _stated_prefix(prompts: dict[str, Any], kind: str) -> Choice[str] | None:
    for name in _PROMPT_NAMES[kind]:
        if isinstance(prompts.get(name), str):
            return Choice(prompts[name], PROMPTS_FILE)
    return Choice("", PROMPTS_FILE) if prompts else None


def _guessed_prefix(kind: str, convention: Convention | None, modules: EncoderModules) -> Choice[str]:
    name = f"{kind}_prefix"
    if convention:
        return Choice(getattr(convention, name), f"the convention of {convention.family}", guessed=True)
    if modules.listed:
        return Choice("", "no file names one", guessed=True)
    return Choice(getattr(EncoderSettings(), name), "the default, E5's", guessed=True)


def _max_tokens(modules: EncoderModules, config: BertConfig) -> Choice[int]:
    """The longest text that is asked for, as far as the body has positions for it."""
    positions = Choice(config.longest_tokens, "the positions of the body")
    for path, name in ((modules.body_settings, "max_seq_length"), (modules.body / TOKENIZER_FILE, "model_max_length")):
        value = read_optional_json(path).get(name)
        if isinstance(value, int | float) and 0 < value < _NO_LIMIT_TOKENS:
            return Choice(int(value), path.name) if value <= positions.value else positions
    return positions
