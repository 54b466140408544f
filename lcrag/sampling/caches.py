"""The key-value cache inside the decode loop, and the selection of some slots without moving data between devices.

Slots are divided into equal consecutive shares, one for each group of devices that divides them. `rows` numbers slots
within each share; the size of a share marks padding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Shaped

from lcrag.policy import BlockCache, DecoderConfig, KeyValueCache, forward, forward_layers
from lcrag.policy.attention import ChunkCache, has_chunk_kernel
from lcrag.sampling.forms import Cache

Rows: TypeAlias = Int[Array, "shares rows"] | None  # None: all slots


def per_slot(x: Shaped[Array, "slots *rest"], rows: Int[Array, "shares rows"]) -> Shaped[Array, "chosen *rest"]:
    """Selects the slots' entries, in order."""
    return _by_share(lambda mine, rows: mine[rows], x, rows).reshape(-1, *x.shape[1:])


def with_per_slot(
    x: Shaped[Array, "slots *rest"], rows: Int[Array, "shares rows"], new: Shaped[Array, "chosen *rest"]
) -> Shaped[Array, "slots *rest"]:
    """The inverse of `per_slot`: writes the slots' entries."""
    parts = new.reshape(*rows.shape, *x.shape[1:])
    put = _by_share(lambda mine, rows, new: mine.at[rows].set(new, mode="drop"), x, rows, parts)
    return put.reshape(x.shape)


def _by_share(function: Callable[..., Array], x: Array, rows: Array, *others: Array) -> Array:
    return jax.vmap(function)(x.reshape(rows.shape[0], -1, *x.shape[1:]), rows, *others)


def window_of(
    x: Float[Array, "*layers slots heads positions width"], rows: Rows, window: int
) -> Float[Array, "*layers chosen heads window width"]:
    """Selects the first positions of the slots in `rows`, or of all slots if `rows` is None."""
    if rows is None:
        return x[..., :window, :]
    *layers, _, heads, _, width = x.shape
    shared = x.reshape(*layers, rows.shape[0], -1, *x.shape[-3:])
    axis = len(layers)
    taken = jax.vmap(lambda mine, rows: mine[..., rows, :, :window, :], in_axes=(axis, 0), out_axes=axis)(shared, rows)
    return taken.reshape(*layers, -1, heads, window, width)


def numbered(rows: Rows, slots: int, shares: int) -> Int[Array, "shares rows"]:
    """Returns `rows`, or those of all slots if it is None."""
    return jnp.tile(jnp.arange(slots // shares), (shares, 1)) if rows is None else rows


def columns_of(
    x: Float[Array, "chosen heads _ _"], starts: Int[Array, "chosen"], count: int, axis: int = -2
) -> Float[Array, "chosen heads _ _"]:
    """Selects `count` positions of each row, from its own start on; `axis` is that of the positions."""
    return jax.vmap(lambda x, start: jax.lax.dynamic_slice_in_dim(x, start, count, axis))(x, starts)


def with_columns(
    x: Float[Array, "*layers slots heads positions width"],
    rows: Int[Array, "shares rows"],
    starts: Int[Array, "chosen"],
    new: Float[Array, "*layers chosen heads count width"],
) -> Float[Array, "*layers slots heads positions width"]:
    """Writes `new` into some slots in place, into the positions from each slot's start on."""
    if x.ndim == 4:
        return with_columns(x[None], rows, starts, new[None])[0]
    shared = x.reshape(x.shape[0], rows.shape[0], -1, *x.shape[2:])
    parts = new.reshape(x.shape[0], *rows.shape, *new.shape[2:])
    numbers = jax.lax.ScatterDimensionNumbers((0, 2, 3, 4), (1,), (1, 3))

    def put_rows(mine, rows, starts, new):
        places = jnp.stack([rows, starts], axis=-1)
        return jax.lax.scatter(mine, places, new, numbers, mode="drop")

    return jax.vmap(put_rows, (1, 0, 0, 1), 1)(shared, rows, starts.reshape(rows.shape), parts).reshape(x.shape)


def with_new_columns(
    cache: Cache, seen: Cache, rows: Int[Array, "shares rows"], first: Int[Array, "chosen"], count: int
) -> Cache:
    """Writes the new positions in the windows of some slots back into the cache of all slots.

    The windows `seen` differ from `cache` only in the `count` positions from each row's `first` on.
    """
    starts, count = starts_within(jax.tree.leaves(seen)[0].shape[-2], first, count)

    def columns(new: Float[Array, "*layers chosen heads window width"]):
        return jax.vmap(columns)(new) if new.ndim > 4 else columns_of(new, starts, count)

    return jax.tree.map(lambda x, new: with_columns(x, rows, starts, columns(new)), cache, seen)


def starts_within(window: int, first: Int[Array, "chosen"], count: int) -> tuple[Int[Array, "chosen"], int]:
    """Returns starts and a count of positions within the window that include the `count` positions from `first` on."""
    count = min(count, window)
    return jnp.minimum(first, window - count), count


class DecodeCache(NamedTuple):
    """The cache of a decode loop, and the functions that the loop applies to it; see `in_place` and `per_layer`."""

    start: Any  # initial carry of the loop
    # (cache, tokens [slots, time], positions [slots, time]) -> (hidden states, the new cache)
    feed: Callable[..., tuple[Float[Array, "slots time width"], Any]]
    # (cache, first [slots], count) -> all slots' cache, after up to `count` tokens were fed to each from `first` on
    end: Callable[..., Cache]


def extended(config: DecoderConfig, params, tokens, positions, cache: Cache) -> tuple[Array, Cache]:
    """Computes final hidden states of new tokens and the extended cache, for either form of the cache."""
    if isinstance(cache, KeyValueCache):
        return forward(config, params, tokens, positions, cache)
    return forward_layers(config, params, params["layers"], tokens, positions, cache)


def appended(
    config: DecoderConfig,
    window: int,
    params,
    cache: Cache,
    rows: Int[Array, "shares rows"],
    tokens: Int[Array, "chosen chunk"],
    first: Int[Array, "chosen"],
    mesh: Mesh | None,
) -> Cache:
    """Returns the cache of all slots after a chunk of tokens was fed to some from their first positions on."""
    chunk = tokens.shape[1]
    positions, held = first[:, None] + jnp.arange(chunk), jax.tree.map(lambda x: window_of(x, rows, window), cache)
    if not isinstance(cache, KeyValueCache) or mesh is None or not has_chunk_kernel(mesh, chunk, window):
        _, seen = extended(config, params, tokens, positions, held)
        return with_new_columns(cache, seen, rows, first, chunk)
    _, grown = forward(config, params, tokens, positions, ChunkCache.of(held.keys, held.values, chunk, mesh))
    assert isinstance(grown, ChunkCache)
    starts, _ = starts_within(window, first, chunk)
    columns = zip(cache, grown.columns(first, starts), strict=True)
    return KeyValueCache(*(with_columns(each, rows, starts, new) for each, new in columns))


def in_place(config: DecoderConfig, window: int, params, cache: Cache, rows: Rows, shares: int) -> DecodeCache:
    """Keeps the form of the cache: all layers in one array, the carry of a scan over layers, or each in its own.

    `window` is the number of positions that the loop reads: only those that the longest running slot needs are carried.
    `cache` has all slots and all positions, `rows` are the slots to compute, of `shares` shares.
    """
    positions = jax.tree.leaves(cache)[0].shape[-2]

    def feed(seen: Cache, tokens, positions):
        return extended(config, params, tokens, positions, seen)

    def end(seen: Cache, first: Int[Array, "slots"], count: int) -> Cache:
        if rows is None and window == positions:
            return seen  # the loop has updated it in place
        return with_new_columns(cache, seen, numbered(rows, len(first), shares), first, count)

    return DecodeCache(jax.tree.map(lambda x: window_of(x, rows, window), cache), feed, end)


def per_layer(config: DecoderConfig, window: int, params, cache: Cache, rows: Rows, shares: int) -> DecodeCache:
    """Like `in_place`, but slices every layer's parameters and window from the stacked arrays once for the whole block.

    This is several times as fast on CPUs, where XLA would copy the slices at every step.
    """
    assert isinstance(cache, KeyValueCache), "the layers are apart already"
    layers = [jax.tree.map(lambda x, layer=layer: x[layer], params["layers"]) for layer in range(config.layers)]
    seen = [
        jax.tree.map(lambda x, layer=layer: window_of(x[layer], rows, window), cache) for layer in range(config.layers)
    ]

    def feed(caches: Sequence[BlockCache], tokens, positions):
        hidden, fed = forward_layers(config, params, layers, tokens, positions, caches)
        return hidden, list(fed)

    def end(caches: Sequence[BlockCache], first: Int[Array, "slots"], count: int) -> KeyValueCache:
        starts, count = starts_within(window, first, count)
        keys = jnp.stack([columns_of(each.keys, starts, count, axis=-1).swapaxes(2, 3) for each in caches])
        values = jnp.stack([columns_of(each.values, starts, count) for each in caches])
        written = numbered(rows, len(first), shares)
        return KeyValueCache(
            with_columns(cache.keys, written, starts, keys), with_columns(cache.values, written, starts, values)
        )

    return DecodeCache([BlockCache(each.keys.swapaxes(2, 3), each.values) for each in seen], feed, end)
