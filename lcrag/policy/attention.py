"""Attention: rotary positions, the key-value cache of sampling, and the kernels for whole rows in training.

TPU: JAX's Pallas splash attention. NVIDIA: cuDNN through `jax.nn.dot_product_attention`. Neither stores a [time, time]
matrix of scores. Elsewhere: matrix products over blocks of queries, which skip later keys. The platform is that of the
mesh, not of the host, so a CPU host can compile for an accelerator that it lacks.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from lcrag.errors import UserError
from lcrag.policy.config import AnyMesh, DecoderConfig, logical_spec, spread_kv_heads

Kernel = Literal["xla", "cudnn", "splash"]

LANES = 128  # width of a TPU register: tiles of scores are multiples of it
MAX_TILE = 512  # queries and keys of a tile, as MaxText uses for v5e and v5p
MAX_BLOCKS, MIN_BLOCK = 4, 96  # of queries, in matrix products: more skip more scores, and take longer to compile
MAX_CUDNN_HEAD = 128  # on every generation; wider ones need Hopper
SAVED_NAME = "flash_attention"  # names the residuals of the forward kernel, for remat policies


class Window(NamedTuple):
    """A sliding window: where it applies, a token attends to itself and the `size - 1` positions before it."""

    size: int
    applies: Bool[Array, ""] | bool  # to the present layer

    def hides(self, queries: Int[Array, "..."], keys: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Returns which positions of keys lie before the windows of the positions of queries."""
        return self.applies & (queries - keys >= self.size)


def rotation(
    config: DecoderConfig, positions: Int[Array, "batch time"], local: bool = False
) -> tuple[Float[Array, "batch time half"], Float[Array, "batch time half"]]:
    """Computes the cosines and sines of rotary position embeddings (Su et al., 2021), for all heads.

    They serve all layers that see everything or, if `local` is set, those with a sliding window.
    """
    exponents = np.arange(0, config.head_width, 2, dtype=np.float32) / config.head_width
    theta = config.local_rope_theta if local else config.rope_theta
    frequencies = (1.0 / theta**exponents).astype(np.float32)  # radians per position
    scaling = None if local else config.rope_scaling
    if scaling and (original := scaling.original_positions):  # stretches long wavelengths, blends, keeps short ones
        wavelengths = 2 * np.pi / frequencies
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        blend = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
        frequencies = ((1 - blend) * frequencies / scaling.factor + blend * frequencies).astype(np.float32)
    elif scaling:
        frequencies = (frequencies / scaling.factor).astype(np.float32)

    def in_a_loop(angles):  # without which XLA for CPUs computes them again in every layer for every head
        both = jax.lax.map(lambda second: jnp.where(second, jnp.sin(angles), jnp.cos(angles)), jnp.array([False, True]))
        return both[0], both[1]

    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jax.lax.platform_dependent(angles, cpu=in_a_loop, default=lambda angle: (jnp.cos(angle), jnp.sin(angle)))


def rotate(
    vectors: Float[Array, "*axes heads width"],
    cosines: Float[Array, "*axes half"],
    sines: Float[Array, "*axes half"],
) -> Float[Array, "*axes heads width"]:
    """Rotates each pair (i, i + width / 2) by the angle of its position."""
    first, second = jnp.split(vectors.astype(jnp.float32), 2, axis=-1)
    cosines, sines = cosines[..., None, :], sines[..., None, :]
    turned = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return turned.astype(vectors.dtype)


Positions: TypeAlias = Int[Array, "slots time"]
Queries: TypeAlias = Float[Array, "slots time heads width"]
Keys: TypeAlias = Float[Array, "slots time kv_heads width"]


def _attend_places(
    queries: Queries,
    positions: Positions,
    keys: Float[Array, "slots kv_heads _ _"],
    values: Float[Array, "slots kv_heads places width"],
    window: Window | None,
    wraps: bool,
    transposed: bool = False,
) -> Queries:
    """Attends to the places of a cache, in which the positions before the queries' are stored; see `KeyValueCache`.

    The queries of a key-value head are one matrix: with queries before heads, CPUs copy every product to transpose it.
    """
    (slots, time, heads, width), (_, kv_heads, places, _) = queries.shape, values.shape
    # heads before time, so that a mesh that splits the heads of a group splits these rows
    grouped = queries.reshape(slots, time, kv_heads, -1, width).transpose(0, 2, 3, 1, 4)
    rows = grouped.reshape(slots, kv_heads, -1, width)
    product = "skrd,skdp->skrp" if transposed else "skrd,skpd->skrp"
    scores = jnp.einsum(product, rows, keys, preferred_element_type=jnp.float32) * width**-0.5
    position, place = positions[..., None], jnp.arange(places)
    if wraps:  # a place holds the latest position that falls on it
        assert window is not None
        ages = position % places - place
        visible = jnp.where(ages < 0, ages + places, ages) <= jnp.minimum(position, window.size - 1)
    else:
        visible = place <= position if window is None else (place <= position) & ~window.hides(position, place)
    visible = jnp.tile(visible, (1, heads // kv_heads, 1))[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(values.dtype)
    out = jnp.einsum("skrp,skpd->skrd", weights, values).reshape(grouped.shape)
    return out.transpose(0, 3, 1, 2, 4).reshape(queries.shape)


class KeyValueCache(flax.struct.PyTreeNode):
    """Keys and values of every slot and layer, or of one layer, for compilers that copy a layer out of a stack.

    Decoding reads the last two axes contiguously.

    Attributes:
      wraps: Whether position p is stored at p modulo the number of places, which hold a sliding window and whatever
        is fed at once: what is overwritten, by padding too, lies before the windows of all that follows.
      transposed: Whether the keys are [slots, kv_heads, width, places], of one layer while a block of tokens is
        decoded. CPUs decode several times as fast as from slices of the other form, which are copied at every step.
    """

    keys: Any  # [*layers, slots, kv_heads, places, width]; while a program is lowered, descriptions of arrays
    values: Any  # [*layers, slots, kv_heads, places, width]
    wraps: bool = flax.struct.field(pytree_node=False, default=False)
    transposed: bool = flax.struct.field(pytree_node=False, default=False)

    def attend(
        self,
        layer: Int[Array, ""] | None,
        positions: Positions,
        queries: Queries,
        keys: Keys,
        values: Keys,
        window: Window | None = None,
    ) -> tuple[Queries, "KeyValueCache"]:
        """Stores new keys and values, and attends from each query to the cached positions up to its own.

        Positions beyond the cache are dropped. `layer` is None if the cache is of one layer.
        """
        places, slots = self.values.shape[-2], jnp.arange(len(keys))[:, None]
        stored = positions % places if self.wraps else positions
        at: tuple[Any, ...] = (slots[..., None], jnp.arange(keys.shape[2]), stored[..., None])
        keys_at = at = at if layer is None else (layer, *at)
        if self.transposed:
            keys_at, at = (slots, slice(None), slice(None), stored), (slots, slice(None), stored)
        cache = self.replace(
            keys=self.keys.at[keys_at].set(keys, mode="drop", unique_indices=True),
            values=self.values.at[at].set(values, mode="drop", unique_indices=True),
        )
        held_keys, held_values = (x if layer is None else x[layer] for x in (cache.keys, cache.values))
        out = _attend_places(queries, positions, held_keys, held_values, window, self.wraps, self.transposed)
        return out, cache


class RowsCache(flax.struct.PyTreeNode):
    """One layer's cache of all slots while tokens are appended to some, for layers that are apart.

    The windows of these slots are copied after the new positions were stored, so that the copy follows the layers
    before, and each layer's is made in the memory of the one before: copies of all layers' windows before the first
    layer would need as much memory as the caches of these slots.
    """

    keys: Float[Array, "slots kv_heads places width"]
    values: Float[Array, "slots kv_heads places width"]
    rows: Int[Array, "shares rows"]  # the slots, counted from the first of their share; others are padding
    window: int = flax.struct.field(pytree_node=False)  # places to attend to
    wraps: bool = flax.struct.field(pytree_node=False, default=False)  # see `KeyValueCache`

    def attend(
        self,
        layer: None,
        positions: Positions,
        queries: Queries,
        keys: Keys,
        values: Keys,
        window: Window | None = None,
    ) -> tuple[Queries, "RowsCache"]:
        """Stores the slots' new keys and values, and attends from each query to the positions up to its own."""
        places = self.keys.shape[-2]
        stored = positions % places if self.wraps else positions

        def put(x: Float[Array, "slots kv_heads places width"], new: Keys):
            def of_share(mine, rows, stored, new):
                return mine.at[rows[:, None], :, stored].set(new, mode="drop", unique_indices=True)

            parts = (array.reshape(*self.rows.shape, *array.shape[1:]) for array in (stored, new))
            return by_share(of_share, x, self.rows, *parts).reshape(x.shape)

        def taken(x: Float[Array, "slots kv_heads places width"]):
            def of_share(mine, rows):
                return mine.at[rows, :, : self.window].get(mode="clip")  # padding reads some slot, without a check

            return by_share(of_share, x, self.rows).reshape(len(positions), x.shape[1], -1, x.shape[3])

        cache = self.replace(keys=put(self.keys, keys), values=put(self.values, values))
        held_keys, held_values = taken(cache.keys), taken(cache.values)
        # A window that is shorter than the cache holds all of the slots' positions: none has wrapped around.
        wraps = self.wraps and self.window >= places
        return _attend_places(queries, positions, held_keys, held_values, window, wraps), cache


def by_share(function: Callable[..., Array], x: Array, rows: Int[Array, "shares rows"], *others: Array) -> Array:
    """Applies a function to equal consecutive shares of the slots of `x`, and to their entries of all others."""
    return jax.vmap(function)(x.reshape(rows.shape[0], -1, *x.shape[1:]), rows, *others)


def empty_cache(
    config: DecoderConfig, slots: int, places: int, mesh: AnyMesh | None = None, layers: int | None = None
) -> KeyValueCache:
    """Returns a cache of zeros for `layers` layers (None: all); for the mesh, see `spread_kv_heads`."""
    layers = config.layers if layers is None else layers
    shape = (layers, slots, spread_kv_heads(config, mesh), places, config.head_width)
    return KeyValueCache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def attention_kernel(config: DecoderConfig, time: int, mesh: Mesh | None) -> Kernel:
    """Chooses the kernel for rows of `time` tokens.

    "auto" follows the mesh: splash on TPUs for rows of at least one tile, cuDNN on NVIDIA GPUs where its conditions
    hold (a 16-bit dtype, heads of at most 128 in steps of 8), else XLA. Without a mesh it is XLA, the only kernel that
    is partitioned automatically.
    """
    device = None if mesh is None else mesh.devices.flat[0]
    if config.attention == "cudnn" and (obstacle := _cudnn_obstacle(config, device)):
        raise UserError(f"attention='cudnn' does not support {obstacle}: set attention='auto'")
    if config.attention != "auto":
        return config.attention
    if device is not None and device.platform == "tpu" and time >= LANES:
        return "splash"
    if device is not None and _cudnn_obstacle(config, device) is None:
        return "cudnn"
    return "xla"


def _cudnn_obstacle(config: DecoderConfig, device) -> str | None:
    """Describes why cuDNN cannot be used, or returns None; without a device, any device is assumed."""
    if device is not None and "NVIDIA" not in device.device_kind:
        return f"a mesh of {device.device_kind} devices, only NVIDIA's"
    if config.sliding_window is not None:
        return "sliding windows"
    if config.compute_dtype == "float32":
        return "compute_dtype='float32', only 16-bit ones"
    if config.head_width % 8 or config.head_width > MAX_CUDNN_HEAD:
        return f"heads {config.head_width} wide, only multiples of 8 up to {MAX_CUDNN_HEAD}"
    return None


def flash_attention(
    kernel: Kernel,
    queries: Float[Array, "batch time heads width"],
    keys: Float[Array, "batch time kv_heads width"],
    values: Float[Array, "batch time kv_heads width"],
    segments: Int[Array, "batch time"] | None,
    mesh: Mesh | None = None,
    window: Window | None = None,
    positions: Int[Array, "batch time"] | None = None,
) -> Float[Array, "batch time heads width"]:
    """Computes causal attention within equal segments; each device processes its own rows and heads.

    Queries are unscaled, and a head of keys serves `heads / kv_heads` neighbouring heads of queries. `segments` number
    the text that each token belongs to; None: a row is one text. Rows are spread over the mesh's axes data and fsdp,
    heads over tensor; both must divide. On other platforms than TPUs "splash" is interpreted: exact but slow.
    A `window` needs the tokens' `positions` in their texts, which splash takes to be consecutive.
    """
    if kernel == "xla":  # XLA partitions its own operations
        return _xla(queries, keys, values, segments, window, positions)
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    splashed = functools.partial(_splash, interpret=platform != "tpu")

    def attend(queries, keys, values, segments, applies=None):
        if kernel == "cudnn":  # takes segments as a 16-bit bias [batch, 1, time, time], and only rows of even length
            time = queries.shape[1]
            queries, keys, values = (_padded(array, time % 2) for array in (queries, keys, values))
            mask = None
            if segments is not None:
                segments = _padded(segments, time % 2)
                mask = segments[:, None, :, None] == segments[:, None, None, :]
            options: Any = {"mask": mask, "is_causal": True, "implementation": "cudnn"}
            return jax.nn.dot_product_attention(queries, keys, values, **options)[:, :time]
        if window is None or window.size >= queries.shape[1]:
            return splashed(queries, keys, values, segments)
        kernels = functools.partial(splashed, before=window.size), splashed
        return jax.lax.cond(applies, *kernels, queries, keys, values, segments)

    arguments = [queries, keys, values, segments, *([] if window is None else [jnp.asarray(window.applies)])]
    if mesh is None:
        return attend(*arguments)
    heads, tokens = logical_spec("batch", None, "heads", None), logical_spec("batch", None)
    specs = (heads, heads, heads, tokens, PartitionSpec())[: len(arguments)]
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)(*arguments)


def query_blocks(time: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each block of queries in matrix products; a block attends to the keys before its end."""
    blocks = max(1, min(MAX_BLOCKS, time // MIN_BLOCK))
    size = -(-time // (blocks * 16)) * 16
    return [(start, min(start + size, time)) for start in range(0, time, size)]


def attended_positions(time: int) -> float:
    """Returns the mean number of keys that a query is multiplied with in these blocks."""
    return sum((end - start) * end for start, end in query_blocks(time)) / time


def _xla(queries, keys, values, segments, window=None, positions=None):
    """Multiplies heads first and the queries of a key-value head as one matrix, which CPUs prefer."""
    (batch, time, heads, width), kv_heads = queries.shape, keys.shape[2]
    grouped = queries.reshape(batch, time, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)
    keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
    at = jnp.arange(time)

    def attended(start: int, end: int) -> Float[Array, "batch kv_heads group block width"]:
        visible = at[start:end, None] >= at[:end]
        if segments is not None:
            visible = visible & (segments[:, start:end, None] == segments[:, None, :end])[:, None, None]
        if window is not None:
            visible = visible & ~window.hides(positions[:, start:end, None], positions[:, None, :end])[:, None, None]
        return _attend(grouped[:, :, :, start:end], keys[:, :, :end], values[:, :, :end], visible)

    out = jnp.concatenate([attended(*block) for block in query_blocks(time)], axis=3)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, time, heads, width)


# Softmax in float32. Its gradient computes the scores again, as FlashAttention's (Dao et al., 2022, section 3.1): on
# CPUs passes over [queries, keys] cost more than products, and no weights are kept for every layer.


@jax.custom_vjp
def _attend(
    queries: Float[Array, "batch kv_heads group block width"],
    keys: Float[Array, "batch kv_heads time width"],
    values: Float[Array, "batch kv_heads time width"],
    visible: Bool[Array, "..."],
) -> Float[Array, "batch kv_heads group block width"]:
    """Computes softmax(queries keysᵀ / √width) values over the visible keys of each query."""
    return _attend_forward(queries, keys, values, visible)[0]


def _attend_forward(queries, keys, values, visible):
    scores = _scores(queries, keys, visible)
    highest = scores.max(axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    weighted = jnp.einsum("bkns,bksd->bknd", _rows(weights).astype(values.dtype), values).reshape(queries.shape)
    out = (weighted / total).astype(values.dtype)
    # Kept instead of the weights: the logarithm of each query's sum of exponentials.
    return out, (queries, keys, values, visible, highest + jnp.log(total), out)


def _attend_backward(saved, gradient):
    queries, keys, values, visible, normalisers, out = saved
    weights = jnp.exp(_scores(queries, keys, visible) - normalisers)
    mean = jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)
    of_scores = weights * (_products(gradient, values) - mean) * queries.shape[-1] ** -0.5
    weights, of_scores = (_rows(array).astype(values.dtype) for array in (weights, of_scores))
    return (
        jnp.einsum("bkns,bksd->bknd", of_scores, keys).reshape(queries.shape),
        jnp.einsum("bkns,bknd->bksd", of_scores, _rows(queries)),
        jnp.einsum("bkns,bknd->bksd", weights, _rows(gradient)),
        None,
    )


_attend.defvjp(_attend_forward, _attend_backward)


def _rows(grouped: Float[Array, "batch kv_heads group block any"]) -> Float[Array, "batch kv_heads rows any"]:
    return grouped.reshape(*grouped.shape[:2], -1, grouped.shape[-1])


def _products(queries, keys) -> Float[Array, "batch kv_heads group block time"]:
    products = jnp.einsum("bknd,bksd->bkns", _rows(queries), keys, preferred_element_type=jnp.float32)
    return products.reshape(*queries.shape[:-1], keys.shape[2])


def _scores(queries, keys, visible) -> Float[Array, "batch kv_heads group block time"]:
    return jnp.where(visible, _products(queries, keys) * queries.shape[-1] ** -0.5, -jnp.inf)


def _splash(queries, keys, values, segments, interpret: bool, before: int | None = None):
    """Attends within a window of `before` tokens, or to everything before; tiles that nothing attends to are skipped.

    Windows are counted along the row, in which the tokens of a text are consecutive.
    """
    time = queries.shape[1]
    tiles = -(-time // MAX_TILE)  # as few as possible, all of one size
    tile = -(-time // (tiles * LANES)) * LANES
    extra = tiles * tile - time
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    shape = (time + extra, time + extra)
    # both are computed inside the kernel: no mask is stored
    mask = masks.CausalMask(shape) if before is None else masks.LocalMask(shape, (before - 1, 0), offset=0)
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * queries.shape[2]),
        block_sizes=splash.BlockSizes(**dict.fromkeys(names, tile)),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=SAVED_NAME,
        interpret=interpret,
    )
    scaled = queries * jnp.asarray(queries.shape[-1] ** -0.5, queries.dtype)
    heads_first = (_padded(array, extra).swapaxes(1, 2) for array in (scaled, keys, values))
    if segments is None:
        out = jax.vmap(kernel)(*heads_first)
    else:
        segments = _padded(segments, extra)
        out = jax.vmap(kernel)(*heads_first, splash.SegmentIds(segments, segments))
    return out.swapaxes(1, 2)[:, :time]


def _padded(array: Array, extra: int) -> Array:
    """Appends tokens, which no token before them can see."""
    return array if extra == 0 else jnp.pad(array, [(0, 0), (0, extra)] + [(0, 0)] * (array.ndim - 2))


class ChunkCache(flax.struct.PyTreeNode):
    """The cache of some slots on TPUs while a chunk of tokens is appended to each: it is read in place.

    Splash attention attends to the tokens that a slot already has and, causally, to the chunk, which is written to the
    `KeyValueCache` after all layers. One static mask serves all context lengths: segment ids mark a context's end.
    """

    keys: Float[Array, "layers rows kv_heads window width"]  # only read
    values: Float[Array, "layers rows kv_heads window width"]
    new_keys: Float[Array, "layers rows kv_heads chunk width"]
    new_values: Float[Array, "layers rows kv_heads chunk width"]
    mesh: Mesh = flax.struct.field(pytree_node=False)  # devices that share the rows and heads

    def attend(
        self,
        layer: Int[Array, ""],
        positions: Positions,
        queries: Queries,
        keys: Keys,
        values: Keys,
        window: Window | None = None,
    ) -> tuple[Queries, "ChunkCache"]:
        """Attends to the slots' positions before the chunk, and within it up to each query's own; without windows.

        Each device processes its own rows and heads. On other platforms than TPUs the kernel is interpreted: exact but
        slow.
        """
        assert window is None, "see has_chunk_kernel"
        keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        chunk, held = queries.shape[1], self.keys.shape[3]
        query_tile, key_tile = (  # the largest tiles that divide the lengths
            next(tile for tile in range(MAX_TILE, 0, -LANES) if length % tile == 0) for length in (chunk, held + chunk)
        )
        interpret = self.mesh.devices.flat[0].platform != "tpu"

        def local(queries, held_keys, held_values, keys, values, first):
            kernel = splash.make_splash_mha(
                masks.MultiHeadMask([masks.CausalMask((chunk, held + chunk), offset=held)] * queries.shape[2]),
                block_sizes=splash.BlockSizes(block_q=query_tile, block_kv=key_tile, block_kv_compute=key_tile),
                head_shards=1,
                q_seq_shards=1,
                interpret=interpret,
            )
            scaled = queries * jnp.asarray(queries.shape[-1] ** -0.5, queries.dtype)
            places = jnp.arange(held + chunk)
            visible = (places < first[:, None]) | (places >= held)
            segments = splash.SegmentIds(jnp.ones(queries.shape[:2], jnp.int32), visible.astype(jnp.int32))
            everything = jnp.concatenate([held_keys, keys], axis=2), jnp.concatenate([held_values, values], axis=2)
            return jax.vmap(kernel)(scaled.swapaxes(1, 2), *everything, segments).swapaxes(1, 2)

        by_time, by_head = logical_spec("slots", None, "heads", None), logical_spec("slots", "heads", None, None)
        specs = by_time, by_head, by_head, by_head, by_head, logical_spec("slots")
        sharded = jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=by_time, check_vma=False)
        out = sharded(queries, self.keys[layer], self.values[layer], keys, values, positions[:, 0])
        new_keys, new_values = self.new_keys.at[layer].set(keys), self.new_values.at[layer].set(values)
        return out, self.replace(new_keys=new_keys, new_values=new_values)

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


def has_chunk_kernel(config: DecoderConfig, mesh: Mesh, chunk: int, window: int) -> bool:
    """Returns whether a `ChunkCache` can be used: on TPUs, for whole tiles, without sliding windows.

    Its static mask knows places in the cache and in the chunk, whose distance differs between slots.
    """
    on_tpu = mesh.devices.flat[0].platform == "tpu"
    return on_tpu and chunk % LANES == 0 and window % LANES == 0 and config.sliding_window is None
