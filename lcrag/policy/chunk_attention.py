"""Attention of appended tokens on TPUs: the cache is read in place, and no scores are stored.

JAX's splash attention kernel attends to the tokens that a slot already has and, causally, to the appended chunk. One
static mask serves all context lengths, because segment ids mark the end of a context. The chunk is written to the
cache after all layers.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from lcrag.policy.attention import LANES, LARGEST_TILE
from lcrag.policy.sharding import logical_spec


class ChunkCache(flax.struct.PyTreeNode):
    """The cache of some slots while a chunk of tokens is appended to each; an alternative to `KeyValueCache`.

    Attributes:
      keys, values: The slots' keys and values of every layer; only read.
      new_keys, new_values: Those of the chunk.
      mesh: Devices that share the rows and heads.
    """

    keys: Float[Array, "layers rows kv_heads window width"]
    values: Float[Array, "layers rows kv_heads window width"]
    new_keys: Float[Array, "layers rows kv_heads chunk width"]
    new_values: Float[Array, "layers rows kv_heads chunk width"]
    mesh: Mesh = flax.struct.field(pytree_node=False)

    @classmethod
    def of(cls, keys: Array, values: Array, chunk: int, mesh: Mesh) -> "ChunkCache":
        """Begins with an empty chunk."""
        empty = jnp.zeros((*keys.shape[:3], chunk, keys.shape[4]), keys.dtype)
        return cls(keys, values, empty, empty, mesh)

    def attend(
        self,
        layer: Int[Array, ""],
        positions: Int[Array, "rows chunk"],
        queries: Float[Array, "rows chunk heads width"],
        keys: Float[Array, "rows chunk kv_heads width"],
        values: Float[Array, "rows chunk kv_heads width"],
    ) -> tuple[Float[Array, "rows chunk heads width"], "ChunkCache"]:
        """Attends to the slots' positions before the chunk, and within it up to each query's own."""
        keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        everything = queries, self.keys[layer], self.values[layer], keys, values, positions[:, 0]
        cache = self.replace(
            new_keys=self.new_keys.at[layer].set(keys), new_values=self.new_values.at[layer].set(values)
        )
        return chunk_attention(self.mesh, *everything), cache

    def columns(self, first: Int[Array, "rows"], starts: Int[Array, "rows"]) -> tuple[Array, Array]:
        """Returns the keys and values of as many positions as the chunk has, from `starts` on.

        A start below a slot's `first` new position, near the end of the window, returns earlier positions again.
        """
        chunk = self.new_keys.shape[3]

        def of_row(held: Array, new: Array, first: Array, start: Array) -> Array:
            before = jax.lax.dynamic_slice_in_dim(held, start, chunk, axis=-2)
            is_new = start + jnp.arange(chunk)[:, None] >= first
            return jnp.where(is_new, jnp.roll(new, first - start, axis=-2), before)

        rows = jax.vmap(of_row, (1, 1, 0, 0), 1)
        keys = rows(self.keys, self.new_keys, first, starts)
        return keys, rows(self.values, self.new_values, first, starts)


def has_chunk_kernel(mesh: Mesh, chunk: int, window: int) -> bool:
    """Returns whether `chunk_attention` can be used: on TPUs, for whole tiles."""
    return mesh.devices.flat[0].platform == "tpu" and chunk % LANES == 0 and window % LANES == 0


def chunk_attention(
    mesh: Mesh,
    queries: Float[Array, "rows chunk heads width"],
    held_keys: Float[Array, "rows kv_heads window width"],
    held_values: Float[Array, "rows kv_heads window width"],
    keys: Float[Array, "rows kv_heads chunk width"],
    values: Float[Array, "rows kv_heads chunk width"],
    first: Int[Array, "rows"],
) -> Float[Array, "rows chunk heads width"]:
    """Attends from each query to the first `first` held positions of its row and causally to its chunk.

    Each device processes its own rows and heads. On other platforms than TPUs the kernel is interpreted: exact but
    slow.
    """
    chunk, window = queries.shape[1], held_keys.shape[2]
    interpret = mesh.devices.flat[0].platform != "tpu"

    def local(queries, held_keys, held_values, keys, values, first):
        kernel = _kernel(queries.shape[2], chunk, window, interpret)
        scaled = queries * jnp.asarray(queries.shape[-1] ** -0.5, queries.dtype)
        places = jnp.arange(window + chunk)
        visible = (places < first[:, None]) | (places >= window)
        segments = splash.SegmentIds(jnp.ones(queries.shape[:2], jnp.int32), visible.astype(jnp.int32))
        everything = jnp.concatenate([held_keys, keys], axis=2), jnp.concatenate([held_values, values], axis=2)
        return jax.vmap(kernel)(scaled.swapaxes(1, 2), *everything, segments).swapaxes(1, 2)

    by_time, by_head = logical_spec("slots", None, "heads", None), logical_spec("slots", "heads", None, None)
    specs = by_time, by_head, by_head, by_head, by_head, logical_spec("slots")
    sharded = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=by_time, check_vma=False)
    return sharded(queries, held_keys, held_values, keys, values, first)


def _kernel(heads: int, chunk: int, window: int, interpret: bool):
    mask = masks.CausalMask((chunk, window + chunk), offset=window)
    queries, keys = (_tile(length) for length in (chunk, window + chunk))
    sizes = splash.BlockSizes(block_q=queries, block_kv=keys, block_kv_compute=keys)
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
    )


def _tile(length: int) -> int:
    """The largest tile that divides a length."""
    return next(tile for tile in range(LARGEST_TILE, 0, -LANES) if length % tile == 0)
