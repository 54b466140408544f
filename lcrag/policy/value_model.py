"""The value model of PPO: the policy's body with a scalar head in place of the unembedding.

Its parameters are those of the decoder without an unembedding, and `value_head` beside them; the decoder's own
functions (`hidden_states`, `param_shardings`) serve its body, at the configuration `value_config`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from lcrag.policy.adapters import split_trainable
from lcrag.policy.config import DecoderConfig
from lcrag.policy.functions import Params, abstract_parameters, param_shardings
from lcrag.policy.sharding import logical_sharding

HEAD = "value_head"
HEAD_AXES: dict[str, tuple[str | None, ...]] = {"kernel": ("embed", None), "bias": (None,)}


def value_config(config: DecoderConfig) -> DecoderConfig:
    """The body of a policy's value model: it has no unembedding of its own."""
    return dataclasses.replace(config, tie_embeddings=True)


def values(params: Params, hidden: Float[Array, "*axes width"]) -> Float[Array, "*axes"]:
    """The value of each context, from its last token's final hidden state; in float32.

    Args:
      params: Of the value model.
      hidden: From `hidden_states` of its body.
    """
    head = params[HEAD]
    return (hidden.astype(jnp.float32) @ head["kernel"] + head["bias"])[..., 0]


def abstract_value_parameters(config: DecoderConfig) -> Params:
    """Shapes and dtypes of the value model's parameters, without any memory; `config` is the policy's."""
    return abstract_parameters(value_config(config)) | {HEAD: _abstract_head(config)}


def value_shardings(config: DecoderConfig, mesh: Mesh) -> PyTree:
    """A NamedSharding for every parameter of the value model, by the policy's own rules; `config` is the policy's.

    Raises:
      UserError: an axis of the mesh does not divide what it shares.
    """
    head = {name: logical_sharding(mesh, *axes) for name, axes in HEAD_AXES.items()}
    return param_shardings(value_config(config), mesh) | {HEAD: head}


def split_value(config: DecoderConfig, tree: PyTree) -> tuple[PyTree, PyTree]:
    """What of the value model is learned and what is frozen: with adapters, these and the head alone are learned.

    Args:
      config: The policy's.
      tree: The value model's parameters, or whatever stands in their places.
    """
    body = {name: leaf for name, leaf in tree.items() if name != HEAD}
    trained, frozen = split_trainable(config, body)
    return trained | {HEAD: tree[HEAD]}, frozen


def value_model_of(config: DecoderConfig, params: Params, mesh: Mesh) -> tuple[Params, Params]:
    """A value model that begins as a policy: (what is learned, what is frozen).

    What is learned is a copy, on the same devices; what is frozen is the policy's own and shared with it. The head
    begins at zero, and so do all values: until the head has learned, advantages are what returns make them.

    Args:
      config: The policy's.
      params: Its parameters; adapters are copied as they are.
      mesh: Devices.
    """
    body = {name: leaf for name, leaf in params.items() if name != "unembedding"}
    trained, frozen = split_trainable(config, body)
    shardings, _ = split_value(config, value_shardings(config, mesh))

    def copy(tree: Params) -> Params:
        head = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in _abstract_head(config).items()}
        return jax.tree.map(lambda leaf: leaf + 0, tree) | {HEAD: head}

    return jax.jit(copy, out_shardings=shardings)(trained), frozen


def _abstract_head(config: DecoderConfig) -> dict[str, Any]:
    shapes = {"kernel": (config.width, 1), "bias": (1,)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
