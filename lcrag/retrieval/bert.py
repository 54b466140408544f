"""The BERT body in Flax (Devlin et al. 2019, arXiv:1810.04805), and its weights' names on the Hugging Face hub."""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Bool, Float, Int

from lcrag.errors import UserError

# Layers of a small model are unrolled inside the scan: on CPUs that is quicker, and compiles as fast.
_UNROLLED_LAYERS = 4
_ACTIVATIONS = {"gelu": functools.partial(jax.nn.gelu, approximate=False), "gelu_new": jax.nn.gelu, "relu": jax.nn.relu}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT encoder, under the names of a Hugging Face `config.json`."""

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
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in _ACTIVATIONS:
            raise UserError(f"hidden_act {self.hidden_act!r} is not supported: there are {', '.join(_ACTIVATIONS)}")


def read_config(path: pathlib.Path) -> BertConfig:
    """Reads a Hugging Face `config.json`.

    Raises:
      UserError: it is not a BERT configuration, or lacks a size.
    """
    try:
        values = json.loads(path.read_text())
        if values.get("model_type") != "bert":
            raise UserError(f"{path} describes a {values.get('model_type')!r} model: only 'bert' bodies are read")
        return BertConfig(**{field.name: values[field.name] for field in dataclasses.fields(BertConfig)})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a readable BERT configuration: {error}") from error


def write_config(path: pathlib.Path, config: BertConfig, dtype: str) -> None:
    values = {"architectures": ["BertModel"], "model_type": "bert", "torch_dtype": dtype, **dataclasses.asdict(config)}
    path.write_text(json.dumps(values, indent=2) + "\n")


def _attention(
    query: Float[Array, "rows width"],
    key: Float[Array, "rows width"],
    value: Float[Array, "rows width"],
    mask: Bool[Array, "batch time"],
    heads: int,
) -> Float[Array, "rows width"]:
    """Softmax attention inside each row of the mask, heads before time: XLA's CPU backend is 2.4 times as quick with
    this order as with that of `jax.nn.dot_product_attention` (forward and backward, 512 x 24 x 4 heads)."""
    split = (*mask.shape, heads, -1)
    query, key, value = (side.reshape(split).swapaxes(1, 2) for side in (query, key, value))
    scores = query @ key.swapaxes(2, 3) / math.sqrt(query.shape[-1])
    weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min))
    return (weights @ value).swapaxes(1, 2).reshape(mask.size, -1)


class _Layer(nn.Module):
    """Self-attention and feed-forward, each followed by a residual sum and a layer norm.

    Batch and time are one axis: XLA's CPU backend multiplies matrices twice as quickly as it does stacks of them.
    """

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "rows width"], mask: Bool[Array, "batch time"]):
        config = self.config
        query, key, value = (nn.Dense(config.hidden_size, name=name)(hidden) for name in ("query", "key", "value"))
        attended = _attention(query, key, value, mask, config.num_attention_heads)
        update = nn.Dense(config.hidden_size, name="attention_output")(attended)
        hidden = nn.LayerNorm(config.layer_norm_eps, name="attention_norm")(hidden + update)
        update = _ACTIVATIONS[config.hidden_act](nn.Dense(config.intermediate_size, name="intermediate")(hidden))
        update = nn.Dense(config.hidden_size, name="output")(update)
        return nn.LayerNorm(config.layer_norm_eps, name="output_norm")(hidden + update), None


class Bert(nn.Module):
    """Token ids to hidden states. A masked position is attended by none; token types are all 0, positions from 0."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "batch time"], mask: Bool[Array, "batch time"]
    ) -> Float[Array, "batch time width"]:
        config = self.config

        def embedding(rows: int, name: str) -> nn.Embed:
            return nn.Embed(rows, config.hidden_size, embedding_init=nn.initializers.normal(0.02), name=name)

        hidden = embedding(config.vocab_size, "word_embeddings")(tokens)
        hidden += embedding(config.max_position_embeddings, "position_embeddings")(jnp.arange(tokens.shape[1]))
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
    """Random float32 parameters; layers are stacked on a leading axis."""
    return Bert(config).init(key, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))["params"]


_EMBEDDINGS = {
    f"embeddings.{name}.weight": (name, "embedding")
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
}
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


def _weight(part: str) -> str:
    return "scale" if part.endswith("LayerNorm") else "kernel"


def _names(config: BertConfig) -> dict[str, tuple[tuple[str, ...], int | None]]:
    """Hugging Face tensor name -> (path in our parameters, layer)."""
    names: dict[str, tuple[tuple[str, ...], int | None]] = {name: (path, None) for name, path in _EMBEDDINGS.items()}
    names["embeddings.LayerNorm.weight"] = (("embeddings_norm", "scale"), None)
    names["embeddings.LayerNorm.bias"] = (("embeddings_norm", "bias"), None)
    for layer in range(config.num_hidden_layers):
        for part, ours in _LAYER_PARTS.items():
            prefix = f"encoder.layer.{layer}.{part}"
            names[f"{prefix}.weight"] = (("layers", ours, _weight(part)), layer)
            names[f"{prefix}.bias"] = (("layers", ours, "bias"), layer)
    return names


def to_tensors(config: BertConfig, params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Parameters under their Hugging Face names; dense kernels are transposed to [out, in]."""
    flat = traverse_util.flatten_dict(jax.device_get(params))
    tensors = {}
    for name, (path, layer) in _names(config).items():
        value = flat[path] if layer is None else flat[path][layer]
        tensors[name] = np.ascontiguousarray(value.T if path[-1] == "kernel" else value)
    return tensors


def from_tensors(config: BertConfig, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """The inverse of `to_tensors`, as float32; tensors that an encoder does not use (the pooler) are left aside.

    Raises:
      KeyError: a tensor is missing.
      ValueError: a tensor's shape is not what the configuration says.
    """
    shapes = traverse_util.flatten_dict(jax.eval_shape(lambda key: initialise(config, key), jax.random.key(0)))
    flat = {path: np.zeros(shape.shape, np.float32) for path, shape in shapes.items()}
    for name, (path, layer) in _names(config).items():
        value = np.asarray(tensors[name], np.float32)
        value = value.T if path[-1] == "kernel" else value
        target = flat[path] if layer is None else flat[path][layer]
        if value.shape != target.shape:
            raise ValueError(f"tensor {name} has shape {value.shape}, the configuration says {target.shape}")
        target[...] = value
    return traverse_util.unflatten_dict(flat)
