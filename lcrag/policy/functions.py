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

Params = Any  # a nested dict of arrays

# The largest block of logits that is ever held, in elements (64 MiB in float32).
LARGEST_LOGITS = 2**24


def _boxed_parameters(config: DecoderConfig, key):
    dummy = jnp.zeros((1, 1), jnp.int32)
    return Decoder(dataclasses.replace(config, attention="xla")).init(key, dummy, dummy)["params"]


def initialise(config: DecoderConfig, key, mesh: Mesh | None = None) -> Params:
    """Random float32 parameters, born sharded: no device ever holds more than its share."""
    create = lambda key: nn.meta.unbox(_boxed_parameters(config, key))  # noqa: E731
    shardings = param_shardings(config, mesh or make_mesh(devices=jax.devices()[:1]))
    return jax.jit(create, out_shardings=shardings)(key)


def abstract_parameters(config: DecoderConfig) -> Params:
    """Shapes and dtypes of the parameters, without any memory."""
    return jax.eval_shape(lambda: nn.meta.unbox(_boxed_parameters(config, jax.random.key(0))))


def param_shardings(config: DecoderConfig, mesh: Mesh):
    """A NamedSharding for every parameter, from the one table of axis rules.

    Raises:
      UserError: an axis of the mesh does not divide what it shares.
    """
    check_mesh(config, mesh)
    boxed = jax.eval_shape(functools.partial(_boxed_parameters, config), jax.random.key(0))
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


def unembedding(config: DecoderConfig, params: Params) -> Float[Array, "vocabulary width"]:
    return params["embedding" if config.tie_embeddings else "unembedding"].astype(config.dtype)


def unembed(config: DecoderConfig, params: Params, hidden: Float[Array, "*axes width"]) -> Float[Array, "*axes words"]:
    """Float32 logits of hidden states."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    product = jnp.einsum("nd,vd->nv", flat, unembedding(config, params), preferred_element_type=jnp.float32)
    return product.reshape(*hidden.shape[:-1], -1)


def unembed_log_probabilities(
    config: DecoderConfig,
    params: Params,
    hidden: Float[Array, "batch time width"],
    targets: Int[Array, "batch time"],
    temperature: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
    """Log-probability of each target, and the entropy there in nats, at a sampling temperature.

    Unembedding and log-softmax are fused over chunks of time and recomputed in the backward
    pass, so at most `LARGEST_LOGITS` logits exist at once. The entropy carries no gradient.
    """

    @jax.checkpoint
    def chunk(pair):
        logits = unembed(config, params, pair[0]) / temperature
        log_normaliser = jax.nn.logsumexp(logits, axis=-1)
        picked = jnp.take_along_axis(logits, pair[1][..., None], axis=-1)[..., 0]
        fixed = jax.lax.stop_gradient(logits)
        mean = jnp.sum(jax.nn.softmax(fixed) * fixed, axis=-1)
        return picked - log_normaliser, jax.lax.stop_gradient(log_normaliser) - mean

    batch, time = targets.shape
    size = max(1, min(time, LARGEST_LOGITS // max(1, batch * config.vocabulary_size)))
    if size == time:
        return chunk((hidden, targets))
    pieces = -(-time // size)
    extra = pieces * size - time
    padded = jnp.pad(hidden, ((0, 0), (0, extra), (0, 0))), jnp.pad(targets, ((0, 0), (0, extra)))
    stacked = jax.tree.map(lambda x: x.reshape(batch, pieces, size, *x.shape[2:]).swapaxes(0, 1), padded)
    results = jax.lax.map(chunk, stacked)
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(batch, -1)[:, :time], results)


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
