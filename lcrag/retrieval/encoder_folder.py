"""Encoders as folders: Hugging Face BERT and XLM-R checkpoints, laid out as `sentence-transformers` expects them."""

import json
import logging
import pathlib
import re
from typing import Any, Literal

import gin
import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import normalizers

from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
from lcrag.policy.model_files import SINGLE_FILE, TensorFolder, read_json_object, read_optional_json
from lcrag.retrieval.bert import read_config, read_tensors, to_tensors, write_config
from lcrag.retrieval.encoder import POOLINGS, Devices, Encoder, EncoderSettings, Pooling
from lcrag.retrieval.folders import readable, replacing

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
BODY_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
TOKENIZER_FILE = "tokenizer_config.json"
_TOKENIZER = "tokenizer.json"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
# Names of the prompts of queries and passages in PROMPTS_FILE, in order of precedence.
_PROMPT_NAMES = {"query": ("query",), "passage": ("passage", "document", "corpus")}
# A tokenizer without a limit has 1e30.
_NO_LIMIT_TOKENS = 1 << 24
_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_LOGGER = logging.getLogger(__name__)


def save_encoder(
    folder: str | pathlib.Path, encoder: Encoder, dtype: Literal["float32", "float16", "bfloat16"] = "float32"
) -> None:
    """Writes an encoder with weights of type `dtype`; `folder` is replaced atomically, or left unchanged on an error.

    An encoder read back from float16 or bfloat16 has rounded weights and thus another fingerprint.
    """
    settings, stored = encoder.settings, _DTYPES[dtype]
    # Without a class, transformers assumes BERT's WordPiece tokenizer. sentence-transformers looks up the prompt
    # "document" first, and assumes an empty prompt without it.
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": settings.max_tokens}
    prompts = {"query": settings.query_prefix} | dict.fromkeys(("passage", "document"), settings.passage_prefix)
    pooling = {
        "word_embedding_dimension": encoder.dimension,
        "pooling_mode_mean_tokens": settings.pooling == "mean",
        "pooling_mode_cls_token": settings.pooling == "cls",
    }
    files: dict[str, Any] = {
        _TOKENIZER: json.loads(encoder.tokenizer.to_str()),
        TOKENIZER_FILE: tokenizer | {"pad_token": encoder.tokenizer.id_to_token(encoder.config.padding_id)},
        MODULES_FILE: MODULES,
        BODY_FILE: {"max_seq_length": settings.max_tokens, "do_lower_case": False},
        PROMPTS_FILE: {"prompts": prompts},
        POOLING_FILE: pooling,
    }
    with replacing(folder) as temporary:
        tensors = {name: value.astype(stored) for name, value in to_tensors(encoder.config, encoder.params).items()}
        safetensors.numpy.save_file(tensors, temporary / SINGLE_FILE, metadata={"format": "pt"})
        (temporary / SINGLE_FILE).chmod(0o644)  # the library restricts it to its owner
        write_config(temporary / "config.json", encoder.config, dtype)
        for name, value in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def load_encoder(
    folder: str | pathlib.Path,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
    devices: Devices = "all",
) -> Encoder:
    """Reads an encoder written by `save_encoder`, `sentence-transformers` or `transformers`.

    `config.json` determines the body. Settings that are not given (see `EncoderSettings`) come from the files of
    `sentence-transformers`, else they are those of E5, whose folders leave them to the model card. One line logs the
    settings: a warning if some come from neither the caller nor a file. For `devices`, see
    `lcrag.retrieval.encoder.rows_mesh`. A file that is missing, damaged, inconsistent with the others, or not supported
    is a UserError.
    """
    folder = readable(folder)
    if not folder.is_dir():
        raise UserError(f"no encoder at {folder}: there is no such folder")
    body, pooling_file = _read_modules(folder)
    config = read_config(body / "config.json")
    usual, guessed = EncoderSettings(), []

    if pooling is None and pooling_file is not None:
        pooling = _read_pooling(pooling_file)
    elif pooling is None:
        pooling = usual.pooling
        guessed.append("pooling")

    prompts = read_optional_json(folder / PROMPTS_FILE).get("prompts") or {}
    if not isinstance(prompts, dict):
        raise UserError(f"{folder / PROMPTS_FILE}: prompts is {prompts!r}, not a table from names to texts")
    if prompts == {"query": "", "document": ""}:  # the library writes this for a model without prompts
        prompts = {}
    prefixes = {"query": query_prefix, "passage": passage_prefix}
    for kind, default in (("query", usual.query_prefix), ("passage", usual.passage_prefix)):
        stated = [prompts[name] for name in _PROMPT_NAMES[kind] if isinstance(prompts.get(name), str)]
        if prefixes[kind] is None and prompts:
            prefixes[kind] = stated[0] if stated else ""
        elif prefixes[kind] is None:
            prefixes[kind] = default
            guessed.append(f"{kind}_prefix")
    leaves_out_prompts = pooling_file is not None and read_json_object(pooling_file).get("include_prompt") is False
    if leaves_out_prompts and any(prefixes.values()):
        raise UserError(
            f"{pooling_file} leaves the prefix out of the pooling (include_prompt), which is not supported: give empty"
            " prefixes, or choose another encoder"
        )

    body_settings = body / "sentence_xlm-roberta_config.json"  # its name in older versions of the library
    body_settings = body_settings if body_settings.is_file() else body / BODY_FILE
    if max_tokens is None:
        max_tokens = config.longest_tokens
        for path, name in ((body_settings, "max_seq_length"), (body / TOKENIZER_FILE, "model_max_length")):
            value = read_optional_json(path).get(name)
            if isinstance(value, int | float) and 0 < value < _NO_LIMIT_TOKENS:
                max_tokens = min(int(value), max_tokens)
                break

    if not (body / _TOKENIZER).is_file():
        raise UserError(
            f"no {body / _TOKENIZER}: an encoder needs a Hugging Face fast tokenizer, which transformers'"
            " AutoTokenizer.from_pretrained(...).save_pretrained(...) writes"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(body / _TOKENIZER))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise UserError(f"{body / _TOKENIZER} is not a readable tokenizer: {error}") from error
    if read_optional_json(body_settings).get("do_lower_case") is True:
        present = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *present])
    settings = EncoderSettings(
        pooling=pooling,
        query_prefix=prefixes["query"] or "",
        passage_prefix=prefixes["passage"] or "",
        max_tokens=max_tokens,
    )
    encoder = Encoder(config, settings, read_tensors(config, TensorFolder(body)), tokenizer, devices)
    level, note = logging.INFO, ""
    if guessed:
        level, note = logging.WARNING, f"; no file names {', '.join(guessed)}: set load_encoder's if they are wrong"
    _LOGGER.log(
        level, "encoder %s: %s of %d layers; %s%s", folder, config.model_type, config.num_hidden_layers, settings, note
    )
    return encoder


def _read_modules(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path | None]:
    """Returns the folder of the body and the pooling's `config.json`; without `modules.json` the body is the folder."""
    path = folder / MODULES_FILE
    if not path.is_file():
        customary = folder / POOLING_FILE
        return folder, customary if customary.is_file() else None
    try:
        paths = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a readable list of modules: {error}") from error
    for kind, place in paths.items():
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise UserError(f"{path} lists a {kind} module, which is not supported: choose another encoder")
        if pathlib.Path(place).is_absolute() or ".." in pathlib.Path(place).parts:
            raise UserError(f"{path} names {place}, which is outside of it: fetch the encoder again")
    pooling = folder / paths["Pooling"] / "config.json" if "Pooling" in paths else None
    return folder / paths.get("Transformer", ""), pooling


def _read_pooling(path: pathlib.Path) -> Pooling:
    """Returns the pooling of a pooling module's `config.json`; the library's default is the mean."""
    values = read_json_object(path)
    modes = values.get("pooling_mode")
    if modes is None:  # older versions have a flag for each mode
        flags = [name for name, value in values.items() if name.startswith("pooling_mode_") and value]
        modes = [re.sub(r"^pooling_mode_|_tokens?$", "", flag) for flag in flags] or ["mean"]
    modes = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(f"{path} asks for {' + '.join(modes)} pooling, which is not supported: choose 'mean' or 'cls'")
    return "cls" if modes == ["cls"] else "mean"


# With gin's bindings; `load_encoder` itself also reads encoders whose settings must be those that were stored.
configured_encoder = gin.external_configurable(typed(load_encoder), "load_encoder", module="lcrag.retrieval")


def named_encoder(folder: str | None, binding: str) -> Encoder:
    """Returns the configured encoder in a folder, the value of `binding`; nothing is downloaded."""
    if folder is None:
        raise UserError(
            f"{binding} names no encoder: give the folder of one that you have with --gin.ENCODER='\"e5-base-v2\"'"
            ' ("atlas/encoder" knows the built-in world only)'
        )
    path = resolved_folder(folder)
    if not path.is_dir():
        raise UserError(
            f"{binding} names the encoder {folder}, but there is no such folder: download it, and name its folder with"
            " --gin.ENCODER"
        )
    return configured_encoder(path)
