"""How the decoder's parameters lie in a Hugging Face checkpoint: names, one tensor a layer, kernels transposed."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from lcrag.policy.config import DecoderConfig
from lcrag.policy.functions import Params, abstract_parameters

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

# The most of a tensor that is in host memory at once, in bytes, on its way to or from the devices.
PIECE_BYTES = 2**26


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredParameter:
    """One tensor of a checkpoint, and the parameter that it is, or is a layer of.

    Attributes:
      path: The parameter, as "layers/mlp/up/kernel".
      layer: Its layer; None if the parameter is not stacked over layers.
      name: The tensor, as "model.layers.3.mlp.up_proj.weight".
      shape: The tensor's shape.
      transposed: Whether the parameter has the tensor's two axes the other way round.
    """

    path: str
    layer: int | None
    name: str
    shape: tuple[int, ...]
    transposed: bool

    @property
    def stacked(self) -> bool:
        """Whether the parameter has an axis of layers, its first."""
        return self.layer is not None

    @property
    def rows_axis(self) -> int:
        """The axis of the parameter along which the tensor's rows lie."""
        return self.stacked + self.transposed

    def start(self, row: int) -> np.ndarray:
        """Where a row of the tensor begins in the parameter, int32[axes of the parameter]."""
        start = np.zeros(self.stacked + len(self.shape), np.int32)
        start[0] = self.layer or 0
        start[self.rows_axis] = row
        return start

    def divides_layers(self, parameter: NamedSharding) -> bool:
        """Whether the parameter's layers lie on different devices: our own table never does that, compilers may."""
        return self.stacked and bool(parameter.spec) and parameter.spec[0] is not None

    def sharding(self, parameter: NamedSharding) -> NamedSharding:
        """How the tensor is spread when each device has what its share of the parameter is made of."""
        axes = (*parameter.spec, *(None for _ in range(3)))[self.stacked : self.stacked + len(self.shape)]
        return NamedSharding(parameter.mesh, PartitionSpec(*(axes[::-1] if self.transposed else axes)))


def stored_parameters(config: DecoderConfig) -> list[StoredParameter]:
    """Every tensor of the model's checkpoint; the layers of a parameter follow one another."""
    return [stored for path, leaf in flat_parameters(abstract_parameters(config)).items() for stored in _of(path, leaf)]


def _of(path: str, leaf: jax.ShapeDtypeStruct) -> Iterator[StoredParameter]:
    stacked, transposed = path.startswith("layers/"), path.endswith("/kernel")
    shape = leaf.shape[1:] if stacked else leaf.shape
    for layer in range(leaf.shape[0]) if stacked else (None,):
        yield StoredParameter(
            path=path,
            layer=layer,
            name=_name(path, layer),
            shape=shape[::-1] if transposed else shape,
            transposed=transposed,
        )


def _name(path: str, layer: int | None) -> str:
    if layer is None:
        return _TOP_NAMES[path]
    module, kind = path.removeprefix("layers/").rsplit("/", 1)
    return f"model.layers.{layer}.{_LAYER_NAMES[module]}.{_KINDS[kind]}"


def flat_parameters(params: Params) -> dict[str, Any]:
    """The leaves of a nested dict by their path, as "layers/mlp/up/kernel"."""
    return traverse_util.flatten_dict(params, sep="/")


def nested_parameters(flat: dict[str, Any]) -> Params:
    """The inverse of `flat_parameters`."""
    return traverse_util.unflatten_dict(flat, sep="/")


def row_pieces(rows: int, row_bytes: int) -> tuple[int, list[int]]:
    """Cuts rows into pieces of one size, so that one compiled program moves them all.

    Returns:
      The rows of a piece (`PIECE_BYTES` of them, at least one), and the first row of each piece. The
      last piece ends with the last row, so it may begin with rows of the one before.
    """
    size = min(rows, max(1, PIECE_BYTES // row_bytes))
    return size, [min(first, rows - size) for first in range(0, rows, size)]
