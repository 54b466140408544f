"""The layout of parameters in a Hugging Face checkpoint: names, one tensor per layer, transposed kernels."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from lcrag.policy.config import DecoderConfig
from lcrag.policy.parameters import Params, abstract_parameters

# Our path inside a layer -> the name inside `model.layers.<n>.`
_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp/gate": "mlp.gate_proj",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
}
EMBEDDING_NAME, UNEMBEDDING_NAME = "model.embed_tokens.weight", "lm_head.weight"
_TOP_NAMES = {
    "embedding": EMBEDDING_NAME,
    "unembedding": UNEMBEDDING_NAME,
    "final_norm/scale": "model.norm.weight",
}
_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}

PIECE_BYTES = 2**26  # of a tensor are in host memory at once, on the way to or from the devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredParameter:
    """One tensor of a checkpoint and its place among the parameters.

    Attributes:
      path: The parameter, such as "layers/mlp/up/kernel".
      layer: Index of the layer, or None if the parameter is not stacked over layers.
      name: The tensor, such as "model.layers.3.mlp.up_proj.weight".
      shape: The tensor's shape.
      transposed: Whether the tensor's two axes are swapped in the parameter.
    """

    path: str
    layer: int | None
    name: str
    shape: tuple[int, ...]
    transposed: bool

    @property
    def stacked(self) -> bool:
        """Whether the parameter's first axis is that of the layers."""
        return self.layer is not None

    @property
    def rows_axis(self) -> int:
        """The axis of the parameter that holds the tensor's rows."""
        return self.stacked + self.transposed

    def start(self, row: int) -> np.ndarray:
        """Returns where a row of the tensor starts in the parameter, int32[axes of the parameter]."""
        start = np.zeros(self.stacked + len(self.shape), np.int32)
        start[0] = self.layer or 0
        start[self.rows_axis] = row
        return start

    def divides_layers(self, parameter: NamedSharding) -> bool:
        """Whether the parameter is sharded over layers: never by our own axis rules, but compilers may do so."""
        return self.stacked and bool(parameter.spec) and parameter.spec[0] is not None

    def sharding(self, parameter: NamedSharding) -> NamedSharding:
        """Returns the sharding of the tensor in which each device holds its own share of the parameter."""
        axes = (*parameter.spec, *(None for _ in range(3)))[self.stacked : self.stacked + len(self.shape)]
        return NamedSharding(parameter.mesh, PartitionSpec(*(axes[::-1] if self.transposed else axes)))


def stored_parameters(config: DecoderConfig) -> list[StoredParameter]:
    """Lists the tensors of the model's checkpoint; the layers of a parameter are consecutive."""
    leaves = flat_parameters(abstract_parameters(config)).items()
    return [stored for path, leaf in leaves for stored in _tensors_of(path, leaf)]


def _tensors_of(path: str, leaf: jax.ShapeDtypeStruct) -> Iterator[StoredParameter]:
    stacked, transposed = path.startswith("layers/"), path.endswith("/kernel")
    shape = leaf.shape[1:] if stacked else leaf.shape
    for layer in range(leaf.shape[0]) if stacked else (None,):
        tensor_shape = shape[::-1] if transposed else shape
        yield StoredParameter(
            path=path, layer=layer, name=_name(path, layer), shape=tensor_shape, transposed=transposed
        )


def _name(path: str, layer: int | None) -> str:
    if layer is None:
        return _TOP_NAMES[path]
    module, kind = path.removeprefix("layers/").rsplit("/", 1)
    return f"model.layers.{layer}.{_LAYER_NAMES[module]}.{_KINDS[kind]}"


def flat_parameters(params: Params) -> dict[str, Any]:
    """Flattens nested parameters to paths such as "layers/mlp/up/kernel"."""
    return traverse_util.flatten_dict(params, sep="/")


def nested_parameters(flat: dict[str, Any]) -> Params:
    """The inverse of `flat_parameters`."""
    return traverse_util.unflatten_dict(flat, sep="/")


def row_pieces(rows: int, row_bytes: int) -> tuple[int, list[int]]:
    """Cuts rows into pieces of one size, so that one compiled function moves them all.

    Returns:
      The rows of a piece (at most `PIECE_BYTES`, at least one row), and the first row of each piece. The last piece
      ends with the last row, so it may overlap the one before.
    """
    size = min(rows, max(1, PIECE_BYTES // row_bytes))
    return size, [min(first, rows - size) for first in range(0, rows, size)]
