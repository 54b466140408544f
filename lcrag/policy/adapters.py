"""Adapters in a tree of parameters: adding them, taking them apart from the frozen base, merging them into it."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from lcrag.policy.config import DecoderConfig
from lcrag.policy.decoder import ADAPTERS
from lcrag.policy.functions import Params, boxed_parameters, param_shardings
from lcrag.policy.lora import Lora
from lcrag.policy.sharding import make_mesh


def add_lora(
    config: DecoderConfig, params: Params, lora: Lora, key, mesh: Mesh | None = None
) -> tuple[DecoderConfig, Params]:
    """The same policy with fresh float32 adapters, born sharded; its own parameters are left as and where they are.

    Args:
      config: The decoder, without adapters.
      params: Its parameters, in float32 or bfloat16.
      lora: Which adapters.
      key: Of the random halves.
      mesh: Devices; one device if None.
    """
    adapted = dataclasses.replace(config, lora=lora)
    create = lambda key: split_trainable(adapted, nn.meta.unbox(boxed_parameters(adapted, key)))[0]  # noqa: E731
    shardings, _ = split_trainable(adapted, param_shardings(adapted, mesh or make_mesh(devices=jax.devices()[:1])))
    return adapted, join(jax.jit(create, out_shardings=shardings)(key), params)


def split_trainable(config: DecoderConfig, tree: PyTree) -> tuple[PyTree, PyTree]:
    """What is learned and what is frozen: adapters and base, or everything and nothing where there are no adapters.

    Args:
      config: The decoder.
      tree: Its parameters, or whatever stands in their places (shardings, abstract arrays).
    """
    if config.lora is None:
        return tree, {}
    flat = traverse_util.flatten_dict(tree)
    parts = ({path: leaf for path, leaf in flat.items() if (path[-1] in ADAPTERS) == learned} for learned in (1, 0))
    trained, frozen = (traverse_util.unflatten_dict(part) for part in parts)
    return trained, frozen


def join(tree: PyTree, other: PyTree) -> PyTree:
    """Two trees of nested dictionaries, with no leaf in common, as one: the inverse of `split_trainable`."""
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(tree) | traverse_util.flatten_dict(other))


def merge_lora(config: DecoderConfig, params: Params, dtype: DTypeLike | None = None) -> tuple[DecoderConfig, Params]:
    """The same policy without adapters: their products are added to the kernels.

    Products and sums are made in float32; a bfloat16 kernel then loses what is below its last bit. Parameters without
    adapters are returned as they are.

    Args:
      config: The decoder.
      params: Its parameters.
      dtype: Of the kernels that adapters were added to; None: as it was.
    """
    if config.lora is None:
        return config, params
    adapters, base = split_trainable(config, params)
    products, kernels = traverse_util.flatten_dict(adapters), traverse_util.flatten_dict(base)
    for path in {path[:-1] for path in products}:
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
