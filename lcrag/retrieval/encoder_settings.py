"""Pooling, prefixes and longest text of an encoder, and their sources.

In order of precedence: the caller, the files of the `sentence-transformers` library, the conventions of known model
names, and that library's defaults (E5's for a folder that it did not write).
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from lcrag.errors import UserError
from lcrag.policy.model_files import read_json_object, read_optional_json
from lcrag.retrieval.bert import BertConfig

Pooling = Literal["mean", "cls"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings of pooling, of the prefixes of texts, and of truncation on the right.

    `pooling` is the "mean" over the tokens (E5: Wang et al. 2022, arXiv:2212.03533) or "cls", the first token (BGE).
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
# Flags of older versions of the library -> modes of newer ones.
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
    """Places of an encoder's parts.

    Attributes:
      listed: Whether the folder lists its modules, as `sentence-transformers` does.
      body: Folder of the body's `config.json`, weights and tokenizer.
      pooling: The pooling's `config.json`, or None.
    """

    listed: bool
    body: pathlib.Path
    pooling: pathlib.Path | None

    @property
    def body_settings(self) -> pathlib.Path:
        """File of `sentence-transformers` on the body; older versions have XLM-R in its name."""
        older = self.body / "sentence_xlm-roberta_config.json"
        return older if older.is_file() else self.body / BODY_FILE

    @property
    def lower_cases(self) -> bool:
        """Whether texts are lower-cased before tokenization."""
        return read_optional_json(self.body_settings).get("do_lower_case") is True

    @property
    def leaves_out_prompts(self) -> bool:
        """Whether pooling excludes the tokens of the prefix."""
        return self.pooling is not None and read_json_object(self.pooling).get("include_prompt") is False


def read_modules(folder: pathlib.Path) -> EncoderModules:
    """Reads `modules.json`; without it the body is the folder itself, and pooling falls back to `1_Pooling/`.

    Raises:
      UserError: A listed module is not supported, or the list cannot be read.
    """
    if not (folder / MODULES_FILE).is_file():
        customary = folder / POOLING_FILE
        return EncoderModules(listed=False, body=folder, pooling=customary if customary.is_file() else None)
    paths = _listed_paths(folder / MODULES_FILE)
    for path in map(pathlib.Path, paths.values()):
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{folder / MODULES_FILE} names {path}, which is outside of it: fetch the encoder again")
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
    """Returns the pooling of a pooling module's `config.json`.

    Raises:
      UserError: It is not supported, or there are several to concatenate.
    """
    modes = _modes(read_json_object(path))
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(f"{path} asks for {' + '.join(modes)} pooling, which is not supported: choose 'mean' or 'cls'")
    return modes[0]


def _modes(values: dict[str, Any]) -> list[str]:
    """Returns the modes that are concatenated; the library defaults to the mean."""
    named = values.get("pooling_mode")
    if named is None:
        return [mode for flag, mode in _FLAGS.items() if values.get(flag)] or ["mean"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]


_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


@dataclasses.dataclass(frozen=True)
class Convention:
    """Pooling and prefixes of a family of encoders, from the model cards of its authors."""

    family: str
    pooling: Pooling
    query_prefix: str = ""
    passage_prefix: str = ""


# Regular expressions on a model's lower-case name, in order of precedence.
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
    """Returns the convention of a model by its folder's name or the name in its body's `config.json`."""
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
# Names of the prompts of queries and passages in PROMPTS_FILE, in order of precedence.
_PROMPT_NAMES = {"query": ("query",), "passage": ("passage", "document", "corpus")}
# A tokenizer without a limit has 1e30.
_NO_LIMIT_TOKENS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Choice:
    """The value of a setting, its source, and whether it comes from neither the caller nor a file."""

    value: Any
    source: str
    guessed: bool = False

    def __str__(self) -> str:
        return f"{self.value!r} ({self.source})"


def choose(
    folder: pathlib.Path, config: BertConfig, modules: EncoderModules, given: Mapping[str, Any]
) -> dict[str, Choice]:
    """Chooses each setting of a folder that the caller left open (None in `given`).

    Raises:
      UserError: A file cannot be read, or a setting in it is not supported.
    """
    convention = convention_of(folder, modules.body)
    prompts = _prompts(folder)
    stated = {name: Choice(value, "given") for name, value in given.items() if value is not None}

    def prefix(kind: str) -> Choice:
        return _stated_prefix(prompts, kind) or _guessed_prefix(kind, convention, modules)

    choices = {
        "pooling": stated.get("pooling") or _pooling(modules, convention),
        "query_prefix": stated.get("query_prefix") or prefix("query"),
        "passage_prefix": stated.get("passage_prefix") or prefix("passage"),
        "max_tokens": stated.get("max_tokens") or _max_tokens(modules, config),
    }
    if modules.leaves_out_prompts and (choices["query_prefix"].value or choices["passage_prefix"].value):
        raise UserError(
            f"{modules.pooling} leaves the prefix out of the pooling (include_prompt), which is not supported:"
            " give empty prefixes, or choose another encoder"
        )
    return choices


def _pooling(modules: EncoderModules, convention: Convention | None) -> Choice:
    if modules.pooling:
        return Choice(read_pooling(modules.pooling), f"{modules.pooling.parent.name}/{modules.pooling.name}")
    if convention:
        return Choice(convention.pooling, f"the convention of {convention.family}", guessed=True)
    return Choice("mean", "the default", guessed=True)


def _prompts(folder: pathlib.Path) -> dict[str, Any]:
    prompts = read_optional_json(folder / PROMPTS_FILE).get("prompts") or {}
    if not isinstance(prompts, dict):
        raise UserError(f"{folder / PROMPTS_FILE}: prompts is {prompts!r}, not a table from names to texts")
    # The library's default for a model without prompts.
    return {} if prompts == {"query": "", "document": ""} else prompts


def _stated_prefix(prompts: dict[str, Any], kind: str) -> Choice | None:
    for name in _PROMPT_NAMES[kind]:
        if isinstance(prompts.get(name), str):
            return Choice(prompts[name], PROMPTS_FILE)
    return Choice("", PROMPTS_FILE) if prompts else None


def _guessed_prefix(kind: str, convention: Convention | None, modules: EncoderModules) -> Choice:
    name = f"{kind}_prefix"
    if convention:
        return Choice(getattr(convention, name), f"the convention of {convention.family}", guessed=True)
    if modules.listed:
        return Choice("", "no file names one", guessed=True)
    return Choice(getattr(EncoderSettings(), name), "the default, E5's", guessed=True)


def _max_tokens(modules: EncoderModules, config: BertConfig) -> Choice:
    """Returns the longest text by the folder's files, limited by the positions of the body."""
    positions = Choice(config.longest_tokens, "the positions of the body")
    for path, name in ((modules.body_settings, "max_seq_length"), (modules.body / TOKENIZER_FILE, "model_max_length")):
        value = read_optional_json(path).get(name)
        if isinstance(value, int | float) and 0 < value < _NO_LIMIT_TOKENS:
            return Choice(int(value), path.name) if value <= positions.value else positions
    return positions
