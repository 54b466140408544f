"""Encoders as folders: a Hugging Face BERT checkpoint laid out as the `sentence-transformers` library expects it."""

import json
import pathlib
from typing import Any, Literal

import safetensors
import safetensors.numpy
import tokenizers

from lcrag.errors import UserError
from lcrag.retrieval.bert import from_tensors, read_config, to_tensors, write_config
from lcrag.retrieval.encoder import Encoder, EncoderSettings
from lcrag.retrieval.folders import readable, replacing

_WEIGHTS = "model.safetensors"
_POOLING = "1_Pooling/config.json"
_PROMPTS = "config_sentence_transformers.json"
_LONGEST = "sentence_bert_config.json"
_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def save_encoder(
    folder: str | pathlib.Path, encoder: Encoder, dtype: Literal["float32", "float16"] = "float32"
) -> None:
    """Writes the encoder; `folder` is replaced as a whole, or, on an error, left as it was.

    `dtype` is that of the stored weights; an encoder read back from float16 has rounded weights and
    thus another fingerprint.
    """
    with replacing(folder) as temporary:
        write_encoder_files(temporary, encoder, dtype)


def write_encoder_files(folder: pathlib.Path, encoder: Encoder, dtype: str) -> None:
    """Writes the files of an encoder into an existing folder."""
    settings = encoder.settings
    tensors = {name: value.astype(dtype) for name, value in to_tensors(encoder.config, encoder.params).items()}
    safetensors.numpy.save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _WEIGHTS).chmod(0o644)  # the library makes it readable to its owner only
    write_config(folder / "config.json", encoder.config, dtype)
    _write(folder / "tokenizer.json", json.loads(encoder.tokenizer.to_str()))
    # Without it transformers takes BERT's WordPiece tokenizer for granted.
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": encoder.tokenizer.id_to_token(0)}
    _write(folder / "tokenizer_config.json", tokenizer | {"model_max_length": settings.max_tokens})
    _write(folder / "modules.json", _MODULES)
    _write(folder / _LONGEST, {"max_seq_length": settings.max_tokens, "do_lower_case": False})
    _write(folder / _PROMPTS, {"prompts": {"query": settings.query_prefix, "passage": settings.passage_prefix}})
    pooling = {
        "word_embedding_dimension": encoder.dimension,
        "pooling_mode_mean_tokens": settings.pooling == "mean",
        "pooling_mode_cls_token": settings.pooling == "cls",
    }
    _write(folder / _POOLING, pooling)


def load_encoder(folder: str | pathlib.Path) -> Encoder:
    """Reads an encoder that `save_encoder` wrote.

    Raises:
      UserError: a file is missing, damaged, or does not fit the others.
    """
    folder = readable(folder)
    if not folder.is_dir():
        raise UserError(f"no encoder at {folder}: there is no such folder")
    config = read_config(folder / "config.json")
    try:
        params = from_tensors(config, safetensors.numpy.load_file(folder / _WEIGHTS))
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder / _WEIGHTS} cannot be read ({error}): copy or train the encoder again") from error
    except (KeyError, ValueError) as error:
        raise UserError(f"{folder / _WEIGHTS} does not fit config.json beside it: {error}") from error
    return Encoder(config, _read_settings(folder), params, _read_tokenizer(folder / "tokenizer.json"))


def _read_settings(folder: pathlib.Path) -> EncoderSettings:
    pooling, prompts = _read(folder / _POOLING), _read(folder / _PROMPTS)
    try:
        return EncoderSettings(
            pooling="cls" if pooling.get("pooling_mode_cls_token") else "mean",
            query_prefix=prompts["prompts"]["query"],
            passage_prefix=prompts["prompts"]["passage"],
            max_tokens=_read(folder / _LONGEST)["max_seq_length"],
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder} lacks an encoder setting: {error} in {_PROMPTS} or {_LONGEST}") from error


def _read_tokenizer(path: pathlib.Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a missing or malformed file
        raise UserError(f"{path} is not a readable tokenizer: {error}") from error


def _read(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _write(path: pathlib.Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
