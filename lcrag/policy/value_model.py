"""The value model of PPO: the policy's body with a scalar head in place of the unembedding.

Its parameters are those of the decoder without an unembedding, plus `value_head`; the decoder's functions
(`hidden_states`, `param_shardings`) apply to its body with the configuration `value_config`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from lcrag.policy.config import DecoderConfig
from lcrag.policy.parameters import Params, abstract_parameters, param_shardings, split_trainable
from lcrag.policy.sharding import AnyMesh, logical_sharding

HEAD = "value_head"
HEAD_AXES: dict[str, tuple[str | None, ...]] = {"kernel": ("embed", None), "bias": (None,)}


def value_config(config: DecoderConfig) -> DecoderConfig:
    """Returns the configuration of the value model's body, which has no unembedding."""
    return dataclasses.replace(config, tie_embeddings=True)


def values(params: Params, hidden: Float[Array, "*axes width"]) -> Float[Array, "*axes"]:
    """Computes float32 values of contexts from the final hidden state of their last token."""
    head = params[HEAD]
    return (hidden.astype(jnp.float32) @ head["kernel"] + head["bias"])[..., 0]


def abstract_value_parameters(config: DecoderConfig) -> Params:
    """Returns shapes and dtypes of the value model's parameters; `config` is the policy's."""
    head = {"kernel": (config.width, 1), "bias": (1,)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in head.items()}
    return abstract_parameters(value_config(config)) | {HEAD: shapes}


def value_shardings(config: DecoderConfig, mesh: AnyMesh) -> PyTree:
    """Returns a NamedSharding for every parameter of the value model; `config` is the policy's."""
    head = {name: logical_sharding(mesh, *axes) for name, axes in HEAD_AXES.items()}
    return param_shardings(value_config(config), mesh) | {HEAD: head}


def split_value(config: DecoderConfig, tree: PyTree) -> tuple[PyTree, PyTree]:
    """Splits a tree of the value model's structure into (trained, frozen); `config` is the policy's.

    With adapters, only these and the head are trained.
    """
    body = {name: leaf for name, leaf in tree.items() if name != HEAD}
    trained, frozen = split_trainable(config, body)
    return trained | {HEAD: tree[HEAD]}, frozen


def value_model_of(config: DecoderConfig, params: Params, mesh: Mesh) -> tuple[Params, Params]:
    """Initialises a value model from a policy; returns (trained, frozen).

    Trained parameters are copied, on the same devices; frozen ones are shared with the policy. The head starts at zero,
    and so do all values: before its first update, advantages depend only on returns.
    """
    body = {name: leaf for name, leaf in params.items() if name != "unembedding"}
    trained, frozen = split_trainable(config, body)
    shardings, _ = split_value(config, value_shardings(config, mesh))

    def copy(tree: Params) -> Params:
        head = abstract_value_parameters(config)[HEAD]
        head = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in head.items()}
        return jax.tree.map(lambda leaf: leaf + 0, tree) | {HEAD: head}

    return jax.jit(copy, out_shardings=shardings)(trained), frozen
