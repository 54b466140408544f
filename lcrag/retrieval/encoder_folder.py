"""Encoders as folders: Hugging Face BERT and XLM-R checkpoints, laid out as `sentence-transformers` expects them."""

import json
import logging
import pathlib
from typing import Any, Literal

import gin
import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import normalizers

from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
from lcrag.policy.model_files import SINGLE_FILE, TensorFolder
from lcrag.retrieval.bert import read_config, write_config
from lcrag.retrieval.bert_tensors import read_tensors, to_tensors
from lcrag.retrieval.encoder import Devices, Encoder
from lcrag.retrieval.encoder_settings import (
    BODY_FILE,
    MODULES_FILE,
    POOLING_FILE,
    PROMPTS_FILE,
    TOKENIZER_FILE,
    EncoderModules,
    EncoderSettings,
    Pooling,
    choose,
    read_modules,
)
from lcrag.retrieval.folders import readable, replacing

StoredDtype = Literal["float32", "float16", "bfloat16"]

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_LOGGER = logging.getLogger(__name__)
_TOKENIZER = "tokenizer.json"
_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def save_encoder(folder: str | pathlib.Path, encoder: Encoder, dtype: StoredDtype = "float32") -> None:
    """Writes an encoder; `folder` is replaced atomically, or left unchanged on an error.

    `dtype` is that of the stored weights; an encoder read back from float16 or bfloat16 has rounded weights and thus
    another fingerprint.
    """
    with replacing(folder) as temporary:
        _write_files(temporary, encoder, dtype)


def _write_files(folder: pathlib.Path, encoder: Encoder, dtype: str) -> None:
    settings = encoder.settings
    stored = _DTYPES[dtype]
    tensors = {name: value.astype(stored) for name, value in to_tensors(encoder.config, encoder.params).items()}
    safetensors.numpy.save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
    (folder / SINGLE_FILE).chmod(0o644)  # the library restricts it to its owner
    write_config(folder / "config.json", encoder.config, dtype)
    _write(folder / _TOKENIZER, json.loads(encoder.tokenizer.to_str()))
    # Otherwise transformers assumes BERT's WordPiece tokenizer.
    padding = encoder.tokenizer.id_to_token(encoder.config.padding_id)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": padding}
    _write(folder / TOKENIZER_FILE, tokenizer | {"model_max_length": settings.max_tokens})
    _write(folder / MODULES_FILE, _MODULES)
    _write(folder / BODY_FILE, {"max_seq_length": settings.max_tokens, "do_lower_case": False})
    # sentence-transformers looks up "document" first, and assumes an empty prompt without it.
    prompts = {"query": settings.query_prefix} | dict.fromkeys(("passage", "document"), settings.passage_prefix)
    _write(folder / PROMPTS_FILE, {"prompts": prompts})
    pooling = {
        "word_embedding_dimension": encoder.dimension,
        "pooling_mode_mean_tokens": settings.pooling == "mean",
        "pooling_mode_cls_token": settings.pooling == "cls",
    }
    _write(folder / POOLING_FILE, pooling)


def load_encoder(
    folder: str | pathlib.Path,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
    devices: Devices = "all",
) -> Encoder:
    """Reads an encoder written by `save_encoder`, `sentence-transformers` or `transformers`.

    `config.json` determines the body. Settings that are not given come from the files of `sentence-transformers`
    (`modules.json`, `1_Pooling/config.json`, `config_sentence_transformers.json`, `sentence_bert_config.json`), else
    from the model cards of E5, BGE and Contriever, by the model's name. One line logs the settings and their sources: a
    warning if a setting comes from neither the caller nor a file.

    Args:
      folder: The encoder's folder.
      pooling: "mean" or "cls".
      query_prefix: Prepended to a query; may be empty.
      passage_prefix: Prepended to a passage; may be empty.
      max_tokens: Longer texts are truncated on the right.
      devices: Where it encodes; see `lcrag.retrieval.encoder.rows_mesh`.

    Raises:
      UserError: A file is missing, damaged, inconsistent with the others, or not supported.
    """
    folder = readable(folder)
    if not folder.is_dir():
        raise UserError(f"no encoder at {folder}: there is no such folder")
    modules = read_modules(folder)
    config = read_config(modules.body / "config.json")
    given = {"pooling": pooling, "query_prefix": query_prefix, "passage_prefix": passage_prefix}
    choices = choose(folder, config, modules, given | {"max_tokens": max_tokens})
    tokenizer = _read_tokenizer(modules)
    params = read_tensors(config, TensorFolder(modules.body))
    settings = EncoderSettings(**{name: choice.value for name, choice in choices.items()})
    encoder = Encoder(config, settings, params, tokenizer, devices)
    level = logging.WARNING if any(choice.guessed for choice in choices.values()) else logging.INFO
    chosen = ", ".join(f"{name} {choice}" for name, choice in choices.items())
    _LOGGER.log(level, "encoder %s: %s of %d layers; %s", folder, config.model_type, config.num_hidden_layers, chosen)
    return encoder


def _read_tokenizer(modules: EncoderModules) -> tokenizers.Tokenizer:
    path = modules.body / _TOKENIZER
    if not path.is_file():
        raise UserError(
            f"no {path}: an encoder needs a Hugging Face fast tokenizer, which transformers'"
            " AutoTokenizer.from_pretrained(...).save_pretrained(...) writes"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise UserError(f"{path} is not a readable tokenizer: {error}") from error
    if modules.lower_cases:
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return tokenizer


def _write(path: pathlib.Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


# With gin's bindings; `load_encoder` itself also reads encoders whose settings must be those that were stored.
configured_encoder = gin.external_configurable(typed(load_encoder), "load_encoder", module="lcrag.retrieval")


def named_encoder(folder: str | None, binding: str) -> Encoder:
    """Returns the configured encoder in a folder, the value of `binding`; nothing is downloaded.

    Raises:
      UserError: no folder is named, or it does not exist.
    """
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
