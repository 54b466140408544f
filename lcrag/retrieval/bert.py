"""BERT (Devlin et al. 2019, arXiv:1810.04805) and XLM-R (Conneau et al. 2020, arXiv:1911.02116) encoders in Flax.

Their parameters have Hugging Face names, which both share, in files.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from flax import traverse_util
from jaxtyping import Array, Bool, Float, Int

from lcrag.errors import UserError
from lcrag.policy.model_files import TensorFolder, read_json_object
from lcrag.retrieval.wire import first_problem

ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
}
# Layers of a small model are unrolled in the scan: faster on CPUs, at the same compile time.
_UNROLLED_LAYERS = 4
# Fields that change the computation, and the only supported value of each.
_FIXED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT encoder; names and defaults of optional fields are those of `transformers`."""

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
            minimum, value = int(field.name != "pad_token_id"), getattr(self, field.name)
            if field.type is int and value < minimum:
                raise UserError(f"{field.name} is {value}: it must be at least {minimum}")
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
        """Id of the padding token."""
        return 0

    @property
    def longest_tokens(self) -> int:
        """Largest number of tokens of a text."""
        return self.max_position_embeddings


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlmRobertaConfig(BertConfig):
    """Sizes of an XLM-R encoder: a BERT whose position ids start after the id of padding.

    The first `pad_token_id + 1` rows of the position table belong to no token.
    """

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
    """Reads a Hugging Face `config.json`; an unsupported or incomplete one is a UserError."""
    if not path.is_file():
        raise UserError(f"there is no encoder in {path.parent}: expected the file {path.name}")
    values = read_json_object(path)
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in _CONFIGS:
        raise UserError(f"{path}: an encoder of type {model_type!r} is not supported: there are {', '.join(_CONFIGS)}")
    for name, value in _FIXED.items():
        if values.get(name, value) != value:
            raise UserError(f"{path}: {name} {values[name]!r} is not supported: only {value!r} is")
    try:
        # Strictly: neither "3" nor true is a number of layers.
        return pydantic.TypeAdapter(_CONFIGS[model_type]).validate_json(json.dumps(values), strict=True)
    except pydantic.ValidationError as error:
        raise UserError(f"{path} is not a readable encoder configuration: {first_problem(error)}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def write_config(path: pathlib.Path, config: BertConfig, dtype: str) -> None:
    """Writes a `config.json` that `transformers` reads; `dtype` is that of the stored weights."""
    kind = {"architectures": [config.architecture], "model_type": config.model_type, "torch_dtype": dtype}
    path.write_text(json.dumps(kind | dataclasses.asdict(config), indent=2) + "\n")


class _Layer(nn.Module):
    """Self-attention and feed-forward, each followed by a residual sum and a layer norm.

    Batch and time are one axis: XLA's CPU backend multiplies matrices twice as fast as stacks of matrices. Heads come
    before time, 2.4 times as fast there as `jax.nn.dot_product_attention` (forward and backward, 512 x 24 x 4 heads).
    """

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "rows width"], mask: Bool[Array, "batch time"]):
        config = self.config
        sides = (nn.Dense(config.hidden_size, name=name)(hidden) for name in ("query", "key", "value"))
        split = (*mask.shape, config.num_attention_heads, -1)
        query, key, value = (side.reshape(split).swapaxes(1, 2) for side in sides)
        scores = query @ key.swapaxes(2, 3) / math.sqrt(query.shape[-1])
        weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min))
        attended = (weights @ value).swapaxes(1, 2).reshape(mask.size, -1)
        update = nn.Dense(config.hidden_size, name="attention_output")(attended)
        hidden = nn.LayerNorm(config.layer_norm_eps, name="attention_norm")(hidden + update)
        update = ACTIVATIONS[config.hidden_act](nn.Dense(config.intermediate_size, name="intermediate")(hidden))
        update = nn.Dense(config.hidden_size, name="output")(update)
        return nn.LayerNorm(config.layer_norm_eps, name="output_norm")(hidden + update), None


class Bert(nn.Module):
    """Maps token ids to hidden states. No position attends to a masked one; all token types are 0."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "batch time"], mask: Bool[Array, "batch time"]
    ) -> Float[Array, "batch time width"]:
        config = self.config
        # BERT counts positions from 0. XLM-R counts tokens other than padding from `pad_token_id + 1`; padding has its
        # own row.
        positions = jnp.arange(tokens.shape[1])[None]
        if isinstance(config, XlmRobertaConfig):
            real = tokens != config.pad_token_id
            positions = jnp.where(real, jnp.cumsum(real, axis=1), 0) + config.pad_token_id

        def embedding(rows: int, name: str) -> nn.Embed:
            return nn.Embed(rows, config.hidden_size, embedding_init=nn.initializers.normal(0.02), name=name)

        hidden = embedding(config.vocab_size, "word_embeddings")(tokens)
        hidden += embedding(config.max_position_embeddings, "position_embeddings")(positions)
        hidden += embedding(config.type_vocab_size, "token_type_embeddings")(jnp.zeros((1,), jnp.int32))
        hidden = nn.LayerNorm(config.layer_norm_eps, name="embeddings_norm")(hidden)
        layers = nn.scan(
            _Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=config.num_hidden_layers,
            unroll=min(config.num_hidden_layers, _UNROLLED_LAYERS),
        )
        rows, _ = layers(config, name="layers")(hidden.reshape(mask.size, -1), mask)
        return rows.reshape(hidden.shape)


def initialise(config: BertConfig, key: jax.Array) -> dict[str, Any]:
    """Returns random float32 parameters; layers are stacked on a leading axis."""
    return jax.jit(Bert(config).init)(key, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))["params"]


_LAYER_PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attention_output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
    "output.LayerNorm": "output_norm",
}
# Prefixes of the body's names in checkpoints with a head, such as a masked language model's.
_PREFIXES = ("", "bert.", "roberta.")
# Tensors of such checkpoints that an encoder does not use: the pooler, buffers and heads.
_UNUSED = r"(bert\.|roberta\.)?(pooler\..*|embeddings\.(position|token_type)_ids)|(cls|lm_head|classifier)\..*"


def _names(config: BertConfig) -> dict[str, tuple[tuple[str, ...], int | None]]:
    """Returns Hugging Face tensor name -> (path in our parameters, layer)."""
    names: dict[str, tuple[tuple[str, ...], int | None]] = {}
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        names[f"embeddings.{table}.weight"] = ((table, "embedding"), None)
    names["embeddings.LayerNorm.weight"] = (("embeddings_norm", "scale"), None)
    names["embeddings.LayerNorm.bias"] = (("embeddings_norm", "bias"), None)
    for layer in range(config.num_hidden_layers):
        for part, ours in _LAYER_PARTS.items():
            prefix = f"encoder.layer.{layer}.{part}"
            names[f"{prefix}.weight"] = (("layers", ours, "scale" if part.endswith("LayerNorm") else "kernel"), layer)
            names[f"{prefix}.bias"] = (("layers", ours, "bias"), layer)
    return names


def to_tensors(config: BertConfig, params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the parameters under their Hugging Face names; dense kernels are transposed to [out, in]."""
    flat = traverse_util.flatten_dict(jax.device_get(params))
    tensors = {}
    for name, (path, layer) in _names(config).items():
        value = flat[path] if layer is None else flat[path][layer]
        tensors[name] = np.ascontiguousarray(value.T if path[-1] == "kernel" else value)
    return tensors


def read_tensors(config: BertConfig, folder: TensorFolder) -> dict[str, Any]:
    """Reads float32 parameters from a model folder, one tensor at a time: the inverse of `to_tensors`.

    A tensor that is missing, has a wrong shape or dtype, or belongs to another model is a UserError.
    """
    abstract: Mapping[tuple[str, ...], jax.ShapeDtypeStruct] = traverse_util.flatten_dict(
        jax.eval_shape(lambda key: initialise(config, key), jax.random.key(0))
    )
    names = _names(config)
    # Stored names may have a prefix, or end as in TensorFlow's old checkpoints.
    prefix = next((p for p in _PREFIXES if f"{p}embeddings.word_embeddings.weight" in folder.tensors), "")
    stored, shapes = {}, {}
    for name, (path, _) in names.items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        stored[name] = prefix + (old if prefix + old in folder.tensors else name)
        shape = abstract[path].shape[1:] if path[0] == "layers" else abstract[path].shape
        shapes[stored[name]] = shape[::-1] if path[-1] == "kernel" else shape
    folder.check(shapes, _UNUSED)
    flat = {path: np.empty(leaf.shape, np.float32) for path, leaf in abstract.items()}
    for name, (path, layer) in names.items():
        value = folder.read(stored[name])
        target = flat[path] if layer is None else flat[path][layer]
        target[...] = value.T if path[-1] == "kernel" else value
    return traverse_util.unflatten_dict(flat)
