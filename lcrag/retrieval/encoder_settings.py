"""Pooling, prefixes and longest text of an encoder, and where they are read from.

In order of precedence: the caller, the files of the `sentence-transformers` library, the conventions of known model
names, and that library's defaults (E5's for a folder that it did not write).
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, get_args

from lcrag.errors import UserError
from lcrag.policy.json_files import read_json_object, read_optional_json
from lcrag.retrieval.bert import BertConfig

Pooling = Literal["mean", "cls"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How texts become vectors.

    Attributes:
      pooling: "mean" over the tokens (E5: Wang et al. 2022, arXiv:2212.03533) or "cls", the first token (BGE).
      query_prefix: Put in front of a query before tokenization.
      passage_prefix: Put in front of a passage.
      max_tokens: Longer texts are cut on the right.
    """

    pooling: Pooling = "mean"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise UserError(f"pooling {self.pooling!r} is not supported: choose 'mean' or 'cls'")
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: an encoder must read at least one token")


MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
BODY_FILE = "sentence_bert_config.json"
_SUPPORTED = ("Transformer", "Pooling", "Normalize")
# The flags that older versions of the library write -> the mode that newer ones name.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclasses.dataclass(frozen=True)
class EncoderModules:
    """Where the parts of an encoder lie.

    Attributes:
      listed: Whether the folder lists its modules, and so is of the making of `sentence-transformers`.
      body: Folder of the body's `config.json`, weights and tokenizer.
      pooling: The pooling's `config.json`, None if there is none.
    """

    listed: bool
    body: pathlib.Path
    pooling: pathlib.Path | None

    @property
    def body_settings(self) -> pathlib.Path:
        """What `sentence-transformers` says of the body; its older versions wrote XLM-R's name into the file's."""
        older = self.body / "sentence_xlm-roberta_config.json"
        return older if older.is_file() else self.body / BODY_FILE

    @property
    def lower_cases(self) -> bool:
        """Whether a text is to be in lower case before it is tokenized."""
        return read_optional_json(self.body_settings).get("do_lower_case") is True

    @property
    def leaves_out_prompts(self) -> bool:
        """Whether the prefix's tokens do not take part in the pooling."""
        return self.pooling is not None and read_json_object(self.pooling).get("include_prompt") is False


def read_modules(folder: pathlib.Path) -> EncoderModules:
    """Reads `modules.json`; without it the body is the folder itself, and the pooling where it is by custom.

    Raises:
      UserError: a module is listed that is not supported, or the list cannot be read.
    """
    if not (folder / MODULES_FILE).is_file():
        customary = folder / POOLING_FILE
        return EncoderModules(listed=False, body=folder, pooling=customary if customary.is_file() else None)
    paths = _listed_paths(folder / MODULES_FILE)
    pooling = folder / paths["Pooling"] / "config.json" if "Pooling" in paths else None
    return EncoderModules(listed=True, body=folder / paths.get("Transformer", ""), pooling=pooling)


def _listed_paths(path: pathlib.Path) -> dict[str, str]:
    try:
        paths = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a readable list of modules: {error}") from error
    for kind in paths:
        if kind not in _SUPPORTED:
            raise UserError(f"{path} lists a {kind} module, which is not supported: there are {', '.join(_SUPPORTED)}")
    return paths


def read_pooling(path: pathlib.Path) -> str:
    """The pooling that a pooling module's `config.json` asks for.

    Raises:
      UserError: it is none that is supported, or several that would be concatenated.
    """
    modes = _modes(read_json_object(path))
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(f"{path} asks for {' + '.join(modes)} pooling, which is not supported: choose 'mean' or 'cls'")
    return modes[0]


def _modes(values: dict[str, Any]) -> list[str]:
    """The modes that are concatenated; the library takes the mean where none is named."""
    named = values.get("pooling_mode")
    if named is None:
        return [mode for flag, mode in _FLAGS.items() if values.get(flag)] or ["mean"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]


_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


@dataclasses.dataclass(frozen=True)
class Convention:
    """How a family of encoders is used.

    Attributes:
      family: What its name is recognised by.
      pooling: "mean" or "cls".
      query_prefix: Put in front of a query.
      passage_prefix: Put in front of a passage.
    """

    family: str
    pooling: Pooling
    query_prefix: str = ""
    passage_prefix: str = ""


# Regular expressions on a model's name in lower case, in the order in which they are tried.
_CONVENTIONS: tuple[tuple[str, Convention], ...] = (
    # Multilingual E5 (Wang et al. 2024, arXiv:2402.05672), the instruction of its card for web search.
    (r"\be5\b.*instruct", Convention("e5-instruct", "mean", _INSTRUCTION)),
    (r"\be5\b", Convention("e5", "mean", "query: ", "passage: ")),
    # BGE (Xiao et al. 2023, arXiv:2309.07597) and BGE-M3 (Chen et al. 2024, arXiv:2402.03216).
    (r"\bbge-m3\b", Convention("bge-m3", "cls")),
    (r"\bbge\b.*-zh\b", Convention("bge-zh", "cls", "为这个句子生成表示以用于检索相关文章：")),
    (r"\bbge\b", Convention("bge", "cls", "Represent this sentence for searching relevant passages: ")),
    # Contriever and mContriever (Izacard et al. 2022, arXiv:2112.09118).
    (r"contriever", Convention("contriever", "mean")),
)


def convention_of(folder: pathlib.Path, body: pathlib.Path) -> Convention | None:
    """The convention of the model in `folder`, by the folder's name or the name in its body's `config.json`."""
    for name in _names_of(folder.absolute(), body):
        for pattern, convention in _CONVENTIONS:
            if re.search(pattern, name.lower().replace("_", "-")):
                return convention
    return None


def _names_of(folder: pathlib.Path, body: pathlib.Path) -> list[str]:
    names = [folder.name]
    if folder.parent.name == "snapshots":  # the hub's cache: models--intfloat--e5-base-v2/snapshots/<commit>
        names.append(folder.parent.parent.name)
    origin = read_json_object(body / "config.json").get("_name_or_path")
    return [*names, origin] if isinstance(origin, str) else names


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
