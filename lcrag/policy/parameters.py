"""The decoder's parameters: initialised, sharded, cast, fingerprinted, adapted, copied to lanes, and what they cost.

Parameters are nested dictionaries of arrays. With LoRA the adapters are next to the kernels that they adapt.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree, UInt

from lcrag.errors import UserError
from lcrag.policy.config import AXIS_RULES, MESH_AXES, AnyMesh, ComputeDtype, DecoderConfig, Lora, make_mesh
from lcrag.policy.decoder import ADAPTERS, Decoder
from lcrag.policy.tokenizer import Tokenizer

Params = Any  # a nested dict of arrays


@dataclasses.dataclass(frozen=True)
class Policy:
    """A decoder with its parameters, tokenizer and devices."""

    name: str  # the folder that it was loaded from
    config: DecoderConfig
    params: Any
    tokenizer: Tokenizer
    mesh: Mesh
    saved_dtype: ComputeDtype | None = None  # of a saved copy; with adapters, its folder's; None: the parameters'


def _boxed_parameters(config: DecoderConfig, key):
    """Draws random float32 parameters that carry their logical axes."""
    dummy = jnp.zeros((1, 1), jnp.int32)
    return Decoder(dataclasses.replace(config, attention="xla")).init(key, dummy, dummy)["params"]


@functools.lru_cache(16)
def _boxed_shapes(config: DecoderConfig):
    return jax.eval_shape(lambda: _boxed_parameters(config, jax.random.key(0)))


def initialise(config: DecoderConfig, key, mesh: Mesh | None = None) -> Params:
    """Draws random float32 parameters, created sharded: no device ever holds more than its share."""
    return _initialiser(config, mesh or make_mesh(devices=jax.devices()[:1]))(key)


@functools.lru_cache(16)
def _initialiser(config: DecoderConfig, mesh: Mesh) -> jax.stages.Wrapped:
    create = lambda key: nn.meta.unbox(_boxed_parameters(config, key))  # noqa: E731
    return jax.jit(create, out_shardings=param_shardings(config, mesh))


def abstract_parameters(config: DecoderConfig) -> Params:
    """Returns the shapes and dtypes of the parameters as `jax.ShapeDtypeStruct`s."""
    return nn.meta.unbox(_boxed_shapes(config))


def parameter_count(config: DecoderConfig) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(abstract_parameters(config)))


def param_shardings(config: DecoderConfig, mesh: AnyMesh):
    """Returns a NamedSharding for every parameter, from the table of axis rules; the mesh must divide them evenly."""
    shared = {
        "fsdp": {"width": config.width},
        "tensor": {
            "vocabulary_size": config.vocabulary_size,
            "heads": config.heads,
            "kv_heads x head_width": config.kv_heads * config.head_width,
            "mlp_width": config.mlp_width,
        },
    }
    for axis, sizes in shared.items():
        for name, size in sizes.items():
            if size % mesh.shape[axis]:
                common = math.gcd(*sizes.values())
                possible = [str(n) for n in range(1, mesh.size + 1) if common % n == 0]
                raise UserError(
                    f"the mesh has {axis}={mesh.shape[axis]}, which does not divide the policy's {name} of {size}:"
                    f" choose {axis} among {', '.join(possible)}"
                )
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(_boxed_shapes(config)), mesh, list(AXIS_RULES))


def compute_parameters(config: DecoderConfig, params: Params) -> Params:
    """Casts parameters to the compute dtype once, as the forward pass would at every use.

    A decode step takes about as long as reading the parameters, and float32 master weights have twice the bytes. The
    scales of norms stay in float32, in which norms are computed, so results are the same bit for bit. Leaves that are
    no wider than the compute dtype are returned without a copy.
    """

    def cast(path, leaf):
        used_in_float32 = path[-1].key == "scale"
        return leaf if used_in_float32 or leaf.dtype.itemsize <= config.dtype.itemsize else leaf.astype(config.dtype)

    return jax.tree.map_with_path(cast, params)


def add_lora(
    config: DecoderConfig, params: Params, lora: Lora, key, mesh: Mesh | None = None
) -> tuple[DecoderConfig, Params]:
    """Adds new float32 adapters, created sharded, to a policy without adapters; its own parameters are reused."""
    adapted = dataclasses.replace(config, lora=lora)
    create = lambda key: split_trainable(adapted, nn.meta.unbox(_boxed_parameters(adapted, key)))[0]  # noqa: E731
    shardings, _ = split_trainable(adapted, param_shardings(adapted, mesh or make_mesh(devices=jax.devices()[:1])))
    return adapted, join(jax.jit(create, out_shardings=shardings)(key), params)


def split_trainable(config: DecoderConfig, tree: PyTree) -> tuple[PyTree, PyTree]:
    """Splits parameters, or a tree of their structure, into (trained, frozen).

    These are adapters and base, or everything and nothing without adapters.
    """
    if config.lora is None:
        return tree, {}
    flat = traverse_util.flatten_dict(tree)
    trained = {path: leaf for path, leaf in flat.items() if path[-1] in ADAPTERS}
    frozen = {path: leaf for path, leaf in flat.items() if path not in trained}
    return traverse_util.unflatten_dict(trained), traverse_util.unflatten_dict(frozen)


def join(tree: PyTree, other: PyTree) -> PyTree:
    """Merges two nested dictionaries without a common leaf: the inverse of `split_trainable`."""
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(tree) | traverse_util.flatten_dict(other))


def merge_lora(config: DecoderConfig, params: Params, dtype: DTypeLike | None = None) -> tuple[DecoderConfig, Params]:
    """Adds the products of the adapters to their kernels; returns the policy without adapters.

    Products and sums are computed in float32, then cast to `dtype` (None: that of the kernel). Parameters without
    adapters are returned as they are.
    """
    if config.lora is None:
        return config, params
    adapters, base = split_trainable(config, params)
    products, kernels = traverse_util.flatten_dict(adapters), traverse_util.flatten_dict(base)
    for path in dict.fromkeys(path[:-1] for path in products):  # in one order: processes trace the same program
        parts = (kernels[(*path, "kernel")], *(products[(*path, name)] for name in ADAPTERS))
        kernels[(*path, "kernel")] = _merged(config.lora.scale, parts[0].dtype if dtype is None else dtype, *parts)
    return dataclasses.replace(config, lora=None), traverse_util.unflatten_dict(kernels)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _merged(
    scale: float,
    dtype: DTypeLike,
    kernel: Float[Array, "layers inputs outputs"],
    down: Float[Array, "layers inputs rank"],
    up: Float[Array, "layers rank outputs"],
) -> Float[Array, "layers inputs outputs"]:
    product = jnp.einsum("lir,lro->lio", down, up, precision="highest", preferred_element_type=jnp.float32)
    return (kernel.astype(jnp.float32) + scale * product).astype(dtype)


def parameter_fingerprint(params: PyTree) -> str:
    """Hashes names, shapes, dtypes and all bits of parameters: 16 hexadecimal digits, the same on any mesh.

    Every value (float32 or bfloat16) is mixed with its place and the results are added modulo 2^32, so the order of the
    sum does not matter and no array leaves its device.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    sums = jax.device_get(_checksums(flat))
    lines = (f"{path} {flat[path].shape} {flat[path].dtype} {sums[path]}" for path in sorted(flat))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@jax.jit
def _checksums(flat: dict[str, Array]) -> dict[str, UInt[Array, ""]]:
    sums = {}
    for path, leaf in flat.items():
        bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")).astype(jnp.uint32)
        strides = np.cumprod([1, *leaf.shape[:0:-1]])[::-1][: leaf.ndim]
        places = sum(
            jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis) * np.uint32(stride % 2**32)
            for axis, stride in enumerate(strides)
        )
        mixed = (bits ^ (places * np.uint32(0x9E3779B1))) * np.uint32(0x85EBCA77)
        sums[path] = jnp.sum((mixed ^ (mixed >> 15)) * np.uint32(0xC2B2AE3D), dtype=jnp.uint32)
    return sums


# --- Lanes ---


def lane_meshes(mesh: Mesh, count: int, tensor: int = 1) -> list[Mesh]:
    """Cuts the devices of a mesh into lanes, process after process, and returns the mesh of each lane.

    A lane divides its parameters over `tensor` devices and its slots over the others. More lanes than devices share
    these: lane l samples on device l mod devices.
    """
    devices = sorted(mesh.devices.flat, key=lambda device: device.process_index)
    size = max(1, len(devices) // count)
    if count < len(devices) and len(devices) % count:
        raise UserError(
            f"Lanes.count is {count}, which does not divide the {len(devices)} devices of the mesh: choose a divisor of"
            f" {len(devices)}, or more lanes than devices"
        )
    if size % tensor:
        raise UserError(
            f"Lanes.tensor is {tensor}, which does not divide the devices of a lane: choose among"
            f" {', '.join(str(n) for n in range(1, size + 1) if size % n == 0)}"
        )
    parts = np.array(devices).reshape(-1, size // tensor, 1, tensor)
    for number, part in enumerate(parts):
        processes = sorted({device.process_index for device in part.flat})
        if len(processes) > 1:
            raise UserError(
                f"lane {number} of {count} would lie in processes {processes[0]} and {processes[-1]}, but a lane holds"
                " whole parameters on devices of one process: raise Lanes.count to the number of processes or a"
                " multiple of it"
            )
    return [Mesh(parts[number % len(parts)], MESH_AXES) for number in range(count)]


def one_lane(mesh: AnyMesh, count: int, tensor: int = 1) -> AnyMesh:
    """Returns the mesh of the first lane (abstract if `mesh` is); the whole mesh if there is one lane."""
    if count == 1:
        return mesh
    if isinstance(mesh, Mesh):
        return lane_meshes(mesh, count, tensor)[0]
    return AbstractMesh((max(1, mesh.size // count // tensor), 1, tensor), MESH_AXES)


def lane_config(config: DecoderConfig) -> DecoderConfig:
    """Returns the decoder that lanes sample with, whose adapters are merged."""
    return dataclasses.replace(config, lora=None)


def hand_over(config: DecoderConfig, params: Params, mesh: Mesh, lanes: Sequence[Mesh]) -> list[Params | None]:
    """Copies parameters on `mesh` to its lanes (see `lane_meshes`); all processes must call it together.

    Adapters are merged and the result is cast to the compute dtype before it is gathered, over the devices' own links:
    no copy passes through the host. The copies share no buffer with `params`.

    Returns:
      The parameters of each lane; None for lanes of other processes. Lanes on the same devices share them.
    """
    distinct, merged = list(dict.fromkeys(lanes)), lane_config(config)
    every_lane = Mesh(np.stack([lane.devices for lane in distinct]), ("lane", *MESH_AXES))
    wide = moved(_cast(config, mesh)(params), param_shardings(merged, every_lane))
    shardings = param_shardings(merged, lanes[0])

    def on_lane(lane: Mesh, array: jax.Array, sharding: NamedSharding) -> jax.Array:
        """Returns the pieces of an array that a lane's devices hold, as the lane's array."""
        pieces = {shard.device: shard.data for shard in array.addressable_shards}
        held = [pieces[device] for device in lane.devices.flat]
        return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(lane, sharding.spec), held)

    placed: dict[Mesh, Params] = {}
    for lane in distinct:
        if lane.devices.flat[0].process_index == jax.process_index():
            placed[lane] = jax.tree.map(functools.partial(on_lane, lane), wide, shardings)
    return [placed.get(lane) for lane in lanes]


def moved(tree: PyTree, shardings: PyTree) -> PyTree:
    """Puts arrays onto other shardings over the devices' own links, where they keep their devices.

    `jax.device_put` would gather the arrays of a single process in the host's memory.
    """

    def move(leaf: Any, sharding: NamedSharding) -> jax.Array:
        here = getattr(leaf, "sharding", None)
        if isinstance(here, NamedSharding) and here != sharding and leaf.is_fully_addressable:
            if list(here.mesh.devices.flat) == list(sharding.mesh.devices.flat):
                return _mover(sharding)(leaf)
        return jax.device_put(leaf, sharding)

    return jax.tree.map(move, tree, shardings)


@functools.cache
def _mover(sharding: NamedSharding) -> jax.stages.Wrapped:
    return jax.jit(lambda leaf: leaf, out_shardings=sharding)


@functools.lru_cache(8)
def _cast(config: DecoderConfig, mesh: Mesh) -> jax.stages.Wrapped:
    """Compiles the merging of adapters and the cast, as `lane_config` reads the parameters."""
    merged = lane_config(config)
    shardings = param_shardings(merged, mesh)

    def prepared(params: Params) -> Params:
        cast = compute_parameters(merged, merge_lora(config, params)[1])
        # the constraint also keeps JAX from returning a parameter that needs no cast as it is
        return jax.lax.with_sharding_constraint(cast, shardings)

    return jax.jit(prepared, out_shardings=shardings)


# --- Costs by formula ---


def layer_parameters(config: DecoderConfig) -> tuple[int, int]:
    """Counts the parameters of the layers' matrices, without the unembedding, and those of their adapters."""
    flat = traverse_util.flatten_dict(abstract_parameters(config))
    kernels, adapters = (
        sum(leaf.size for path, leaf in flat.items() if path[-1] in names) for names in (("kernel",), ADAPTERS)
    )
    return kernels, adapters


def causal_mean(length: int) -> float:
    """Returns the mean number of positions that a token of a causal text attends to, itself included."""
    return (length + 1) / 2


def forward_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Counts the operations of one forward pass.

    Args:
      tokens: Tokens that pass through the layers.
      attended: Positions that a token attends to on average: `causal_mean(length)` for whole texts, the mean context
        length in a decode step; layers with a sliding window attend to at most that many.
      unembedded: Tokens whose logits are computed; None: all. Learning needs only the policy's own.
    """
    unembedded = tokens if unembedded is None else unembedded
    scores_and_values = 4.0 * config.heads * config.head_width * tokens * _over_layers(config, attended)
    logits = 2.0 * config.width * config.vocabulary_size * unembedded
    return 2.0 * sum(layer_parameters(config)) * tokens + scores_and_values + logits


def update_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Counts the operations of a forward and backward pass, without recomputation; arguments as in `forward_flops`.

    The backward pass has two products for each product of the forward pass, for the gradients of its two operands, and
    one for a frozen matrix. This is the numerator of model FLOPs utilisation (Chowdhery et al., 2022).
    """
    frozen = 0.0
    if config.lora is not None:
        logits = 2.0 * config.width * config.vocabulary_size * (tokens if unembedded is None else unembedded)
        frozen = 2.0 * layer_parameters(config)[0] * tokens + logits
    return 3.0 * forward_flops(config, tokens, attended=attended, unembedded=unembedded) - frozen


def cache_bytes(config: DecoderConfig, slots: int, positions: float) -> float:
    """Returns the size of the keys and values of `positions` positions in every slot.

    Of layers with a sliding window no more than the window counts; a sampler's caches also have room for one `append`.
    """
    of_layers = _over_layers(config, positions)
    return 2.0 * slots * config.kv_heads * of_layers * config.head_width * config.dtype.itemsize


def _over_layers(config: DecoderConfig, positions: float) -> float:
    """Returns the sum over layers of the positions that are attended to; sliding windows have no more than theirs."""
    local = sum(map(config.is_local, range(config.layers)))
    return (config.layers - local) * positions + local * min(positions, config.sliding_window or 0)


def decode_bytes(config: DecoderConfig, slots: int, window: float, *, dtype: str | None = None) -> float:
    """Returns the bytes that one decode step (one token in every slot) must at least read and write.

    Every parameter is read once (of an untied embedding only the slots' rows), the cache of `window` positions is read
    and one position is written. Divided by seconds x measured copy bandwidth, it is the share of bandwidth reached.
    `dtype` is that of the stored parameters; None: the compute dtype.
    """
    itemsize = jnp.dtype(dtype or config.compute_dtype).itemsize
    unread = 0 if config.tie_embeddings else max(0, config.vocabulary_size - slots) * config.width
    return (parameter_count(config) - unread) * itemsize + cache_bytes(config, slots, window + 1)
