"""The decoder as pure functions of (config, params): what sampling, learning and users call."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from lcrag.policy.attention import KeyValueCache
from lcrag.policy.config import DecoderConfig
from lcrag.policy.decoder import Decoder
from lcrag.policy.sharding import check_mesh, make_mesh, shardings_of
from lcrag.policy.unembedding import unembed, unembed_log_probabilities

Params = Any  # a nested dict of arrays


def boxed_parameters(config: DecoderConfig, key):
    """Random float32 parameters that carry their logical axes."""
    dummy = jnp.zeros((1, 1), jnp.int32)
    return Decoder(dataclasses.replace(config, attention="xla")).init(key, dummy, dummy)["params"]


def initialise(config: DecoderConfig, key, mesh: Mesh | None = None) -> Params:
    """Random float32 parameters, born sharded: no device ever holds more than its share."""
    create = lambda key: nn.meta.unbox(boxed_parameters(config, key))  # noqa: E731
    shardings = param_shardings(config, mesh or make_mesh(devices=jax.devices()[:1]))
    return jax.jit(create, out_shardings=shardings)(key)


def abstract_parameters(config: DecoderConfig) -> Params:
    """Shapes and dtypes of the parameters, without any memory."""
    return jax.eval_shape(lambda: nn.meta.unbox(boxed_parameters(config, jax.random.key(0))))


def param_shardings(config: DecoderConfig, mesh: Mesh):
    """A NamedSharding for every parameter, from the one table of axis rules.

    Raises:
      UserError: an axis of the mesh does not divide what it shares.
    """
    check_mesh(config, mesh)
    boxed = jax.eval_shape(functools.partial(boxed_parameters, config), jax.random.key(0))
    return shardings_of(boxed, mesh)


def forward(
    config: DecoderConfig,
    params: Params,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    cache: KeyValueCache,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "batch time width"], KeyValueCache]:
    """Final hidden states of new tokens that see the cache, and the cache with them in it."""
    return Decoder(config, mesh).apply({"params": params}, tokens, positions, cache=cache)


def hidden_states(
    config: DecoderConfig,
    params: Params,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"] | None = None,
    segments: Int[Array, "batch time"] | None = None,
    mesh: Mesh | None = None,
) -> Float[Array, "batch time width"]:
    """Final hidden states of whole rows.

    Args:
      config: The decoder.
      params: Its parameters.
      tokens: Token ids.
      positions: Position of each token in its own text; counted from 0 along the row if None.
      segments: Which text a token belongs to; tokens see only their own. None: a row is one text.
      mesh: Where the rows are spread; it also chooses the attention kernel (see `attention_kernel`).
    """
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return Decoder(config, mesh).apply({"params": params}, tokens, positions, segments)[0]


@functools.partial(jax.jit, static_argnums=0)
def logits(
    config: DecoderConfig,
    params: Params,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"] | None = None,
    segments: Int[Array, "batch time"] | None = None,
) -> Float[Array, "batch time vocabulary"]:
    """All logits of whole rows, in float32: for inspection and parity tests, at small sizes.

    Padding at either end of a row is a segment of its own; see `hidden_states`.
    """
    return unembed(config, params, hidden_states(config, params, tokens, positions, segments))


@functools.partial(jax.jit, static_argnums=0)
def log_probabilities(
    config: DecoderConfig,
    params: Params,
    tokens: Int[Array, "batch time"],
    targets: Int[Array, "batch time"],
) -> Float[Array, "batch time"]:
    """log p(targets[b, t] | tokens[b, :t + 1]), never materialising all logits."""
    return unembed_log_probabilities(config, params, hidden_states(config, params, tokens), targets)[0]


def parameter_count(config: DecoderConfig) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(abstract_parameters(config)))
