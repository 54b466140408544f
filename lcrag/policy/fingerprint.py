"""A short name for the content of parameters: whether two sets of weights are the same, bit for bit."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, PyTree, UInt


def parameter_fingerprint(params: PyTree) -> str:
    """A hash of the names, shapes, dtypes and all bits of parameters: 16 hexadecimal digits, the same on any mesh.

    Every value is mixed with its place and the results are added modulo 2^32, so the order in which devices add them
    does not matter, and no array leaves them.

    Args:
      params: A nested dictionary of float32 or bfloat16 arrays.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    sums = jax.device_get(_sums(flat))
    lines = (f"{path} {flat[path].shape} {flat[path].dtype} {sums[path]}" for path in sorted(flat))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@jax.jit
def _sums(flat: dict[str, Array]) -> dict[str, UInt[Array, ""]]:
    return {path: _sum(leaf) for path, leaf in flat.items()}


def _sum(leaf: Array) -> UInt[Array, ""]:
    bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")).astype(jnp.uint32)
    strides = np.cumprod([1, *leaf.shape[:0:-1]])[::-1][: leaf.ndim]
    places = sum(
        jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis) * np.uint32(stride % 2**32)
        for axis, stride in enumerate(strides)
    )
    mixed = (bits ^ (places * np.uint32(0x9E3779B1))) * np.uint32(0x85EBCA77)
    return jnp.sum((mixed ^ (mixed >> 15)) * np.uint32(0xC2B2AE3D), dtype=jnp.uint32)
