"""The key-value cache and attention over it (sampling); `flash_attention` is that over whole rows (training)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from lcrag.policy.config import DecoderConfig
from lcrag.policy.sharding import spread_kv_heads


class KeyValueCache(NamedTuple):
    """Keys and values of every layer and slot; positions lie next to widths because decode reads them in a row."""

    keys: Float[Array, "layers slots kv_heads positions width"]
    values: Float[Array, "layers slots kv_heads positions width"]


def empty_cache(config: DecoderConfig, slots: int, positions: int, mesh: Mesh | None = None) -> KeyValueCache:
    """No keys and values yet; the mesh says how often key-value heads are repeated (see `spread_kv_heads`)."""
    shape = (config.layers, slots, spread_kv_heads(config, mesh), positions, config.head_width)
    return KeyValueCache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def write_cache(
    cache: KeyValueCache,
    layer: Int[Array, ""],
    positions: Int[Array, "slots time"],
    keys: Float[Array, "slots time kv_heads width"],
    values: Float[Array, "slots time kv_heads width"],
) -> KeyValueCache:
    """Stores new keys and values at each slot's own positions; positions beyond the cache are dropped."""
    slots, heads = jnp.arange(keys.shape[0])[:, None, None], jnp.arange(keys.shape[2])[None, None, :]
    at = (layer, slots, heads, positions[:, :, None])
    return KeyValueCache(
        cache.keys.at[at].set(keys, mode="drop", unique_indices=True),
        cache.values.at[at].set(values, mode="drop", unique_indices=True),
    )


def cached_attention(
    queries: Float[Array, "slots time heads width"],
    keys: Float[Array, "slots kv_heads positions width"],
    values: Float[Array, "slots kv_heads positions width"],
    query_positions: Int[Array, "slots time"],
) -> Float[Array, "slots time heads width"]:
    """Each query sees the cached positions up to its own; the softmax is in float32."""
    slots, time, heads, width = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.reshape(slots, time, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum("stkgd,skpd->skgtp", grouped, keys, preferred_element_type=jnp.float32) * width**-0.5
    visible = jnp.arange(keys.shape[2]) <= query_positions[:, None, None, :, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(values.dtype)
    return jnp.einsum("skgtp,skpd->stkgd", weights, values).reshape(slots, time, heads, width)
