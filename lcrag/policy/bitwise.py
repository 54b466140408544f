"""Batch-invariant operations of the decoder: results are the same bit for bit, whatever else is computed with them.

For `DecoderConfig.bitwise`: float32 on one CPU device. A token then has the same hidden state, and the same
log-probability, whichever slots, windows and chunks it was sampled with and whichever rows it is trained in.

- Operations on single positions (projections, norms, rotations, the unembedding) are computed for `TILE` positions at
  a time, in a loop. The body of a loop has one shape and is compiled separately from its surroundings.
- Attention works on blocks of `TILE` keys that begin at multiples of `TILE` in a text. The products of its scores and
  values have inner axes of at most 128, for which XLA adds one product after the other, with fused
  multiply-adds, for one query as for many. The contributions of blocks of keys are added in order. A masked block
  contributes exact zeros, so longer windows change nothing.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from lcrag.errors import UserError

TILE = 64
LEAST_COLUMNS = 32  # of a product of few rows; XLA multiplies fewer in another order
MOST_GROUPS = 4  # of query tiles in a row: more skip more keys, and take longer to compile


def check_bitwise(bitwise: bool, mesh: Mesh) -> None:
    """Checks that a mesh is a single CPU device if `bitwise`.

    Raises:
      UserError: It has several devices, or one that is not a CPU.
    """
    platform = mesh.devices.flat[0].platform
    if bitwise and (mesh.size > 1 or platform != "cpu"):
        raise UserError(
            f"bitwise=True works on one CPU device, but the mesh has {mesh.size} of platform {platform!r}: set"
            " Computation.bitwise = False, or choose one CPU device"
        )


def loop_count(count: int):
    """Returns `count` as a value that XLA cannot fold, so a loop of one iteration stays a loop."""
    return jax.lax.optimization_barrier(jnp.int32(count))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def by_tiles(function: Callable[..., Any], rows: tuple[Array, ...], shared: tuple[Array, ...] = ()) -> Any:
    """Computes `function(*rows, *shared)` for `TILE` rows at a time; gradients are computed for all rows at once.

    Args:
      function: Maps rows to rows, each by itself; returns an array or a tuple of arrays.
      rows: Arrays with the same number of rows.
      shared: Arrays that all rows read.
    """
    count = len(rows[0])
    tiles = -(-count // TILE)
    # XLA would take one tile that is the whole array out of the loop
    extra = max(tiles, 2) * TILE - count
    padded = [jnp.pad(each, ((0, extra), *[(0, 0)] * (each.ndim - 1))) for each in rows]

    def of_tile(number, results):
        tile = (jax.lax.dynamic_slice_in_dim(each, number * TILE, TILE) for each in padded)
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=number * TILE, axis=0)
        return jax.tree.map(put, results, function(*tile, *shared))

    shapes = jax.eval_shape(function, *padded, *shared)
    empty = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    results = jax.lax.fori_loop(0, loop_count(tiles), of_tile, empty)
    return jax.tree.map(lambda each: each[:count], results)


def _forward(function, rows, shared):
    return by_tiles(function, rows, shared), (rows, shared)


def _backward(function, arguments, gradient):
    return jax.vjp(lambda rows, shared: function(*rows, *shared), *arguments)[1](gradient)


by_tiles.defvjp(_forward, _backward)


def attend_bitwise(
    queries: Float[Array, "batch time heads width"],
    keys: Float[Array, "batch kv_heads positions width"],
    values: Float[Array, "batch kv_heads positions width"],
    visible: Bool[Array, "batch time positions"],
    *,
    causal: bool = False,
) -> Float[Array, "batch time heads width"]:
    """Attends from each query to the positions that are visible to it.

    Args:
      queries: Unscaled.
      keys, values: A text begins at a multiple of `TILE`.
      visible: Which positions each query attends to, at least one.
      causal: Whether query t sees no position after t; these are then not computed.
    """
    (batch, time, heads, width), kv_heads = queries.shape, keys.shape[1]
    group = heads // kv_heads
    keys, values = (whole_tiles(each, 2) for each in (keys, values))
    visible = whole_tiles(visible, 2)
    scaled = (queries * width**-0.5).reshape(batch, time, kv_heads, group, width).transpose(0, 2, 3, 1, 4)
    if time == 1:
        out = _one_query(scaled[:, :, :, 0], keys, values, visible)
        return out.reshape(batch, 1, heads, width)
    scaled = whole_tiles(scaled, 3).reshape(batch, kv_heads, group, -1, TILE, width).swapaxes(2, 3)
    visible = whole_tiles(visible, 1, fill=True).reshape(batch, -1, TILE, visible.shape[2])
    tiles = visible.shape[1]
    size = -(-tiles // MOST_GROUPS) if causal else tiles
    parts = []
    for start in range(0, tiles, size):
        end = min(start + size, tiles)
        seen = end * TILE if causal else keys.shape[2]
        arrays = scaled[:, :, start:end], keys[:, :, :seen], values[:, :, :seen], visible[:, start:end, :, :seen]
        parts.append(_tiles_of_queries(*arrays))
    out = jnp.concatenate(parts, axis=2).swapaxes(2, 3).reshape(batch, heads, tiles * TILE, width)
    return out[:, :, :time].swapaxes(1, 2)


def whole_tiles(array: Array, axis: int, least: int = TILE, fill: bool = False) -> Array:
    """Pads an axis to a multiple of `least`."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, -array.shape[axis] % least)
    return jnp.pad(array, widths, constant_values=fill) if widths[axis][1] else array


def _one_query(
    queries: Float[Array, "slots kv_heads group width"],
    keys: Float[Array, "slots kv_heads positions width"],
    values: Float[Array, "slots kv_heads positions width"],
    visible: Bool[Array, "slots 1 positions"],
) -> Float[Array, "slots kv_heads group width"]:
    scores = jnp.einsum("skgd,skpd->skgp", queries, keys)
    scores = scores.reshape(*scores.shape[:3], -1, TILE).transpose(3, 0, 1, 2, 4)
    seen = visible.reshape(len(visible), 1, 1, -1, TILE).transpose(3, 0, 1, 2, 4)
    weights, total = _weights(scores, seen)
    blocks = whole_tiles(values, 3, LEAST_COLUMNS) if values.shape[3] < LEAST_COLUMNS else values
    blocks = blocks.reshape(*values.shape[:2], -1, TILE, blocks.shape[3])
    parts = jnp.einsum("skbgp,skbpd->skbgd", weights.transpose(1, 2, 0, 3, 4), blocks)
    return _in_order(jnp.moveaxis(parts, 2, 0))[..., : values.shape[3]] * (1 / total)


def _tiles_of_queries(
    queries: Float[Array, "batch kv_heads tiles group tile width"],
    keys: Float[Array, "batch kv_heads positions width"],
    values: Float[Array, "batch kv_heads positions width"],
    visible: Bool[Array, "batch tiles tile positions"],
) -> Float[Array, "batch kv_heads tiles group tile width"]:
    batch, kv_heads, tiles, _, _, width = queries.shape
    rows = queries.reshape(batch, kv_heads, tiles, -1, width)

    def over_blocks(equation: str, blocks: Array, left: Callable[[Any], Array], *others: Array) -> Array:
        """Multiplies with one block of keys or values after the other; products have one shape whatever the row."""

        def product(block):
            right = jnp.broadcast_to(block[0][:, :, None], (batch, kv_heads, tiles, *block[0].shape[2:]))
            return jnp.einsum(equation, left(block), right)

        return jax.lax.map(product, (blocks, *others))

    def blocks_of(array: Array) -> Float[Array, "blocks batch kv_heads tile columns"]:
        return jnp.moveaxis(array.reshape(batch, kv_heads, -1, TILE, array.shape[3]), 2, 0)

    scores = over_blocks("bkind,bkisd->bkins", blocks_of(keys), lambda _: rows)
    scores = scores.reshape(len(scores), *queries.shape[:5], TILE)
    seen = jnp.moveaxis(visible.reshape(batch, 1, tiles, 1, TILE, -1, TILE), 5, 0)
    weights, total = _weights(scores, seen)
    weights = weights.reshape(len(scores), batch, kv_heads, tiles, -1, TILE)
    parts = over_blocks("bkins,bkisd->bkind", blocks_of(whole_tiles(values, 3)), lambda block: block[1], weights)
    return _in_order(parts)[..., :width].reshape(queries.shape) * (1 / total)


def _weights(
    scores: Float[Array, "blocks *rows tile"], visible: Bool[Array, "blocks *_ tile"]
) -> tuple[Float[Array, "blocks *rows tile"], Float[Array, "*rows 1"]]:
    """Returns exponentials relative to each row's highest score, and their sum."""
    masked = jnp.where(visible, scores, -jnp.inf)
    highest = jax.lax.stop_gradient(jnp.max(masked, axis=(0, -1), keepdims=True))
    relative = masked - highest
    weights = by_tiles(jnp.exp, (relative.reshape(-1, TILE),)).reshape(relative.shape)  # XLA has several, by shape
    folded = weights
    while folded.shape[-1] > 1:
        folded = operator.add(*jnp.split(folded, 2, axis=-1))
    return weights, _in_order(folded)


def _in_order(parts: Float[Array, "blocks *rest"]) -> Float[Array, "*rest"]:
    """Adds up the contributions of blocks of keys, in order."""
    return functools.reduce(operator.add, parts)
