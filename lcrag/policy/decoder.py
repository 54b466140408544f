"""The decoder, one Flax Linen module for all families, and its forward pass as pure functions of (config, params).

Layers are stacked and scanned. The cache is part of the scan's carry, which lets XLA update it in place.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from lcrag.policy.attention import (
    SAVED_NAME,
    BlockCache,
    ChunkCache,
    KeyValueCache,
    attention_kernel,
    flash_attention,
    rotate,
    rotation,
)
from lcrag.policy.config import DecoderConfig, Lora
from lcrag.policy.sharding import constrain, spread_kv_heads
from lcrag.policy.unembedding import unembed, unembed_log_probabilities

WholeCache: TypeAlias = KeyValueCache | ChunkCache  # of all layers
ADAPTERS = ("lora_a", "lora_b")
# Names the output of a linear layer, adapters included: keeping every product would keep that of the adapters as well.
LINEAR_NAME = "linear"
REMAT_POLICIES = {
    # without the residuals of the attention kernel, splash's forward kernel would run twice
    "dots": jax.checkpoint_policies.save_only_these_names(LINEAR_NAME, SAVED_NAME),
    "full": None,
}


class Places(NamedTuple):
    """Positions, segments and rotations of the tokens, shared by all layers."""

    positions: Int[Array, "batch time"]
    segments: Int[Array, "batch time"] | None
    cosines: Float[Array, "batch time 1 half"]
    sines: Float[Array, "batch time 1 half"]


class Norm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich, 2019), in float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
        scale = self.param("scale", nn.with_logical_partitioning(nn.initializers.ones, ("norm",)), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + self.epsilon) * scale).astype(x.dtype)


class Linear(nn.Module):
    """A matrix product over the last axis, flattened to two axes because XLA:CPU's backward pass prefers that."""

    features: int
    axes: tuple[str, str]
    bias: bool = False
    lora: Lora | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "batch time inputs"]) -> Float[Array, "batch time features"]:
        initial = nn.with_logical_partitioning(nn.initializers.normal(0.02), self.axes)
        kernel = self.param("kernel", initial, (x.shape[-1], self.features))
        flat = x.reshape(-1, x.shape[-1])
        y = flat @ kernel.astype(x.dtype)
        if self.bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
            y = y + self.param("bias", zeros, (self.features,)).astype(x.dtype)
        if self.lora is not None and "/".join(self.path[-2:]) in self.lora.targets:
            uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # within ±1/sqrt(inputs)
            first = nn.with_logical_partitioning(uniform, (self.axes[0], "rank"))
            second = nn.with_logical_partitioning(nn.initializers.zeros, ("rank", self.axes[1]))
            down = self.param(ADAPTERS[0], first, (x.shape[-1], self.lora.rank))
            up = self.param(ADAPTERS[1], second, (self.lora.rank, self.features))
            y = y + flat @ down.astype(x.dtype) @ up.astype(x.dtype) * self.lora.scale
        y = checkpoint_name(y, LINEAR_NAME)
        return y.reshape(*x.shape[:-1], self.features)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023) with rotary positions."""

    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, x, cache: WholeCache | BlockCache | None, layer, places: Places):
        config, (batch, time) = self.config, x.shape[:2]
        kv_heads = spread_kv_heads(config, self.mesh) if cache is None else cache.values.shape[-3]

        def heads(name: str, count: int, copies: int = 1) -> Float[Array, "batch time heads width"]:
            features = count * config.head_width
            y = Linear(features, ("embed", "heads"), config.qkv_bias, config.lora, name=name)(x)
            y = y.reshape(batch, time, count, config.head_width)
            if copies > 1:
                y = jnp.repeat(constrain(y, self.mesh, "batch", None, None, None), copies, axis=2)
            return constrain(y, self.mesh, "batch", None, "heads", None)

        queries = heads("query", config.heads)
        keys, values = (heads(name, config.kv_heads, kv_heads // config.kv_heads) for name in ("key", "value"))
        if config.qk_norm:
            queries = Norm(config.norm_epsilon, name="query_norm")(queries)
            keys = Norm(config.norm_epsilon, name="key_norm")(keys)
        queries, keys = (rotate(each, places.cosines, places.sines) for each in (queries, keys))
        if cache is None:
            kernel = attention_kernel(config, time, self.mesh)
            out = flash_attention(kernel, queries, keys, values, places.segments, self.mesh)
        else:
            out, cache = cache.attend(layer, places.positions, queries, keys, values)
        out = out.reshape(batch, time, config.heads * config.head_width)
        return Linear(config.width, ("heads", "embed"), lora=config.lora, name="output")(out), cache


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "batch time width"]) -> Float[Array, "batch time width"]:
        config = self.config
        inwards = functools.partial(Linear, config.mlp_width, ("embed", "mlp"), lora=config.lora)
        gate, up = inwards(name="gate")(x), inwards(name="up")(x)
        inner = constrain(jax.nn.silu(gate) * up, self.mesh, "batch", None, "mlp")
        return Linear(config.width, ("mlp", "embed"), lora=config.lora, name="down")(inner)


class Block(nn.Module):
    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, carry, layer, places: Places):
        hidden, cache = carry
        norm = functools.partial(Norm, self.config.norm_epsilon)
        update, cache = Attention(self.config, self.mesh, name="attention")(
            norm(name="attention_norm")(hidden), cache, layer, places
        )
        hidden = hidden + update
        hidden = hidden + GatedMLP(self.config, self.mesh, name="mlp")(norm(name="mlp_norm")(hidden))
        return (constrain(hidden, self.mesh, "batch", None, None), cache), None


class Decoder(nn.Module):
    """Maps tokens to final hidden states; the unembedding is applied elsewhere, in blocks.

    On a mesh, activations follow the table of axis rules: rows over data and fsdp, heads and the MLP's inner width over
    tensor; the rows must divide.
    """

    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "batch time"],
        positions: Int[Array, "batch time"],
        segments: Int[Array, "batch time"] | None = None,
        cache: WholeCache | None = None,
    ) -> tuple[Float[Array, "batch time width"], WholeCache | None]:
        config = self.config
        initial = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("vocabulary", "embed"))
        embedding = self.param("embedding", initial, (config.vocabulary_size, config.width))
        if not config.tie_embeddings:
            self.param("unembedding", initial, (config.vocabulary_size, config.width))
        places = Places(positions, segments, *rotation(config, positions))
        hidden = constrain(embedding[tokens].astype(config.dtype), self.mesh, "batch", None, None)
        block = Block
        if config.remat != "none":
            block = nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast),
            length=config.layers,
            unroll=config.layers if config.unroll_layers else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, self.mesh, name="layers")
        (hidden, cache), _ = layers((hidden, cache), jnp.arange(config.layers), places)
        return Norm(config.norm_epsilon, name="final_norm")(hidden), cache


OfAllLayers = TypeVar("OfAllLayers", KeyValueCache, ChunkCache)
TRACING = threading.RLock()  # Flax modifies a class while it derives another, and lanes trace at the same time


def forward(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    cache: OfAllLayers,
) -> tuple[Float[Array, "batch time width"], OfAllLayers]:
    """Computes final hidden states of new tokens that attend to the cache, and the extended cache."""
    with TRACING:
        return Decoder(config).apply({"params": params}, tokens, positions, cache=cache)


OneLayer = TypeVar("OneLayer", KeyValueCache, BlockCache)


def forward_layers(
    config: DecoderConfig,
    params: Any,
    layers: Sequence[Any],
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    caches: Sequence[OneLayer],
) -> tuple[Float[Array, "batch time width"], tuple[OneLayer, ...]]:
    """Computes `forward` with separate arrays for each layer: `layers` are their parameters, not stacked."""
    places = Places(positions, None, *rotation(config, positions))
    hidden, extended = params["embedding"][tokens].astype(config.dtype), []
    with TRACING:
        for layer, cache in zip(layers, caches, strict=True):
            (hidden, cache), _ = Block(config).apply({"params": layer}, (hidden, cache), None, places)
            extended.append(cache)
        hidden = Norm(config.norm_epsilon).apply({"params": params["final_norm"]}, hidden)
    return hidden, tuple(extended)


def hidden_states(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"] | None = None,
    segments: Int[Array, "batch time"] | None = None,
    mesh: Mesh | None = None,
) -> Float[Array, "batch time width"]:
    """Computes final hidden states of whole rows.

    Args:
      positions: Position of each token in its text; counted from 0 along the row if None.
      segments: The text that each token belongs to; tokens attend only within it. None: a row is one text.
      mesh: Devices over which the rows are spread; it also determines the attention kernel (see `attention_kernel`).
    """
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    with TRACING:
        return Decoder(config, mesh).apply({"params": params}, tokens, positions, segments)[0]


@functools.partial(jax.jit, static_argnums=0)
def logits(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"] | None = None,
    segments: Int[Array, "batch time"] | None = None,
) -> Float[Array, "batch time vocabulary"]:
    """Computes all float32 logits of whole rows, for inspection and parity tests at small sizes.

    Padding at either end of a row must be a segment of its own; see `hidden_states`.
    """
    return unembed(config, params, hidden_states(config, params, tokens, positions, segments))


@functools.partial(jax.jit, static_argnums=0)
def log_probabilities(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch time"],
    targets: Int[Array, "batch time"],
) -> Float[Array, "batch time"]:
    """Computes log p(targets[b, t] | tokens[b, :t + 1]) without materialising all logits."""
    return unembed_log_probabilities(config, params, hidden_states(config, params, tokens), targets)[0]
