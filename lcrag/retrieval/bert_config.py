"""Sizes of the encoders' bodies, BERT and XLM-R, as a Hugging Face `config.json` names them."""

import dataclasses
import json
import pathlib
from typing import Any, ClassVar

from lcrag.errors import UserError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
# Fields that would change the mathematics, and the only value for which it is the one computed here.
_FIXED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT encoder (Devlin et al. 2019, arXiv:1810.04805).

    The names, and the defaults of what a `config.json` may leave out, are those of `transformers`.
    """

    model_type: ClassVar[str] = "bert"
    architecture: ClassVar[str] = "BertModel"

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            least, value = int(field.name != "pad_token_id"), getattr(self, field.name)
            if field.type is int and value < least:
                raise UserError(f"{field.name} is {value}: it must be at least {least}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(f"hidden_act {self.hidden_act!r} is not supported: there are {', '.join(ACTIVATIONS)}")
        if self.longest_tokens < 1:
            raise UserError(f"max_position_embeddings {self.max_position_embeddings} leaves no position for a token")

    @property
    def padding_id(self) -> int:
        """The id that the tokenizer pads with."""
        return 0

    @property
    def longest_tokens(self) -> int:
        """How many tokens a text may have."""
        return self.max_position_embeddings


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlmRobertaConfig(BertConfig):
    """Sizes of an XLM-R encoder (Conneau et al. 2020, arXiv:1911.02116): a BERT whose position ids start behind
    that of padding, `pad_token_id`, so that the first `pad_token_id + 1` rows of its table belong to no token."""

    model_type: ClassVar[str] = "xlm-roberta"
    architecture: ClassVar[str] = "XLMRobertaModel"

    pad_token_id: int = 1

    @property
    def padding_id(self) -> int:
        return self.pad_token_id

    @property
    def longest_tokens(self) -> int:
        return self.max_position_embeddings - self.pad_token_id - 1


_CONFIGS: dict[str, type[BertConfig]] = {config.model_type: config for config in (BertConfig, XlmRobertaConfig)}


def read_config(path: pathlib.Path) -> BertConfig:
    """Reads a Hugging Face `config.json`.

    Raises:
      UserError: it is of another architecture, lacks a size, or asks for what is not computed here.
    """
    try:
        values = json.loads(path.read_text())
        kind = _CONFIGS[_checked(values)]
        return kind(**{field.name: _typed(field, values) for field in dataclasses.fields(kind) if field.name in values})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no encoder in {path.parent}: expected the file {path.name}") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a readable encoder configuration: {error}") from error


def _checked(values: dict[str, Any]) -> str:
    """The model type, once nothing is left that would change the mathematics."""
    model_type = values.get("model_type")
    if model_type not in _CONFIGS:
        raise UserError(f"an encoder of type {model_type!r} is not supported: there are {', '.join(_CONFIGS)}")
    for name, value in _FIXED.items():
        if values.get(name, value) != value:
            raise UserError(f"{name} {values[name]!r} is not supported: only {value!r} is")
    return model_type


def _typed(field: dataclasses.Field, values: dict[str, Any]) -> Any:
    kind, value = {"int": int, "float": float, "str": str}[getattr(field.type, "__name__", "")], values[field.name]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{field.name} is {value!r}: it must be of type {kind.__name__}")
    return value


def write_config(path: pathlib.Path, config: BertConfig, dtype: str) -> None:
    """Writes a `config.json` that `transformers` reads; `dtype` is that of the weights beside it."""
    kind = {"architectures": [config.architecture], "model_type": config.model_type, "torch_dtype": dtype}
    path.write_text(json.dumps(kind | dataclasses.asdict(config), indent=2) + "\n")
