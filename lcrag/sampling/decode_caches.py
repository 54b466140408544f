"""Forms of the key-value cache inside the decode loop of a block.

Each function takes the decoder, the window, the parameters, the cache and the slots to compute (see
`lcrag.sampling.rows`; None: all, in `shares` parts), and returns the cache of the loop with its functions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from lcrag.policy import BlockCache, DecoderConfig, KeyValueCache, forward, forward_layers
from lcrag.policy.chunk_attention import ChunkCache, has_chunk_kernel
from lcrag.sampling.forms import Cache
from lcrag.sampling.rows import all_rows, columns_of, starts_within, window_of, with_columns, with_new_columns

Rows: TypeAlias = Int[Array, "shares rows"] | None


class DecodeCache(NamedTuple):
    """The cache of a decode loop, and the functions that the loop applies to it.

    Attributes:
      start: Initial carry of the loop.
      feed: (cache, tokens [slots, time], positions [slots, time]) -> hidden states [slots, time, width], the new cache.
      end: (cache, first [slots], count) -> all slots' cache, all positions, after up to `count` tokens have been fed to
        each slot from its first position on.
    """

    start: Any
    feed: Callable[..., tuple[Float[Array, "slots time width"], Any]]
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
    """Keeps the form of the cache: all layers in one array, the carry of a scan over layers, or each in its own."""
    positions = jax.tree.leaves(cache)[0].shape[-2]

    def feed(seen: Cache, tokens, positions):
        return extended(config, params, tokens, positions, seen)

    def end(seen: Cache, first: Int[Array, "slots"], count: int) -> Cache:
        if rows is None and window == positions:
            return seen  # the loop has updated it in place
        written = all_rows(len(first), shares) if rows is None else rows
        return with_new_columns(cache, seen, written, first, count)

    # Only the positions that the longest running slot needs are read and carried through the loop.
    return DecodeCache(jax.tree.map(lambda x: window_of(x, rows, window), cache), feed, end)


def per_layer(config: DecoderConfig, window: int, params, cache: Cache, rows: Rows, shares: int) -> DecodeCache:
    """Slices every layer's parameters and window from the stacked arrays once for the whole block.

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
        written = all_rows(len(first), shares) if rows is None else rows
        return KeyValueCache(
            with_columns(cache.keys, written, starts, keys), with_columns(cache.values, written, starts, values)
        )

    return DecodeCache([BlockCache(each.keys.swapaxes(2, 3), each.values) for each in seen], feed, end)
