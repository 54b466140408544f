"""The decoder's parameters: initialised, sharded, cast for sampling, fingerprinted, and split into adapters and base.

Parameters are nested dictionaries of arrays. With LoRA the adapters are next to the kernels that they adapt.
"""

import dataclasses
import functools
import hashlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree, UInt

from lcrag.policy.config import DecoderConfig, Lora
from lcrag.policy.decoder import ADAPTERS, Decoder
from lcrag.policy.sharding import AXIS_RULES, AnyMesh, check_mesh, make_mesh

Params = Any  # a nested dict of arrays


def _boxed_parameters(config: DecoderConfig, key):
    """Draws random float32 parameters that carry their logical axes."""
    dummy = jnp.zeros((1, 1), jnp.int32)
    return Decoder(dataclasses.replace(config, attention="xla")).init(key, dummy, dummy)["params"]


@functools.lru_cache(16)
def _boxed_shapes(config: DecoderConfig):
    """Traces the shapes of the parameters, with their logical axes."""
    return jax.eval_shape(lambda: _boxed_parameters(config, jax.random.key(0)))


def initialise(config: DecoderConfig, key, mesh: Mesh | None = None) -> Params:
    """Draws random float32 parameters, created sharded: no device ever holds more than its share."""
    create = lambda key: nn.meta.unbox(_boxed_parameters(config, key))  # noqa: E731
    shardings = param_shardings(config, mesh or make_mesh(devices=jax.devices()[:1]))
    return jax.jit(create, out_shardings=shardings)(key)


def abstract_parameters(config: DecoderConfig) -> Params:
    """Returns the shapes and dtypes of the parameters as `jax.ShapeDtypeStruct`s."""
    return nn.meta.unbox(_boxed_shapes(config))


def parameter_count(config: DecoderConfig) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(abstract_parameters(config)))


def param_shardings(config: DecoderConfig, mesh: AnyMesh):
    """Returns a NamedSharding for every parameter, from the table of axis rules."""
    check_mesh(config, mesh)
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
