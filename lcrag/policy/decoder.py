"""The decoder, one Flax Linen module for all families, and its forward pass as pure functions of (config, params).

Layers are stacked and scanned, or unrolled on CPUs. A cache is part of the carry, which lets XLA update it in place.

Log-probabilities never materialise all logits. With V words and N positions, they and their gradient are computed over
blocks of the vocabulary: the logits [N, block] of a block are computed, reduced and dropped, and recomputed in the
backward pass; if one block holds the whole vocabulary, they are kept instead. Each block completes its rows of the
table's gradient; with blocks of positions, gradients [V, width] of all blocks would have to be added.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from lcrag.policy.attention import (
    SAVED_NAME,
    ChunkCache,
    KeyValueCache,
    RowsCache,
    Window,
    attention_kernel,
    flash_attention,
    rotate,
    rotation,
)
from lcrag.policy.config import DecoderConfig, Lora, constrain, logical_sharding, spread_kv_heads

WholeCache: TypeAlias = KeyValueCache | ChunkCache  # of all layers
ADAPTERS = ("lora_a", "lora_b")
# Names the output of a linear layer, adapters included: keeping every product would keep that of the adapters as well.
LINEAR_NAME = "linear"
REMAT_POLICIES = {
    # without the residuals of the attention kernels, splash's and cuDNN's forward kernels would run twice
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.save_only_these_names(LINEAR_NAME, SAVED_NAME),
        lambda primitive, *_, **__: primitive.name.startswith("dot_product_attention_fwd"),
    ),
    "full": None,
}


class Places(NamedTuple):
    """Positions, segments and rotations of the tokens, shared by all layers."""

    positions: Int[Array, "batch time"]
    segments: Int[Array, "batch time"] | None
    cosines: Float[Array, "batch time half"]
    sines: Float[Array, "batch time half"]
    local: tuple[Float[Array, "batch time half"], Float[Array, "batch time half"]] | None  # of sliding windows

    @classmethod
    def of(cls, config: DecoderConfig, positions: Array, segments: Array | None = None) -> "Places":
        local = None if config.sliding_window is None else rotation(config, positions, local=True)
        return cls(positions, segments, *rotation(config, positions), local)


class Norm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich, 2019), in float32; Gemma's weights are relative to 1."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
        initial = nn.initializers.zeros if self.config.gemma else nn.initializers.ones
        scale = self.param("scale", nn.with_logical_partitioning(initial, ("norm",)), (x.shape[-1],))
        scale = 1 + scale if self.config.gemma else scale
        wide, epsilon = x.astype(jnp.float32), self.config.norm_epsilon
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + epsilon) * scale).astype(x.dtype)


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
    """Grouped-query attention (Ainslie et al., 2023) with rotary positions, in Gemma's local layers within a window."""

    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, x, cache: WholeCache | RowsCache | None, layer, is_local, places: Places):
        config, (batch, time) = self.config, x.shape[:2]
        kv_heads = spread_kv_heads(config, self.mesh) if cache is None else cache.values.shape[-3]

        def heads(name: str, count: int, copies: int = 1) -> Float[Array, "batch time heads width"]:
            features = count * config.head_width
            y = Linear(features, ("embed", "heads"), config.family == "qwen2", config.lora, name=name)(x)
            y = y.reshape(batch, time, count, config.head_width)
            if copies > 1:
                y = jnp.repeat(constrain(y, self.mesh, "batch", None, None, None), copies, axis=2)
            return constrain(y, self.mesh, "batch", None, "heads", None)

        queries = heads("query", config.heads)
        keys, values = (heads(name, config.kv_heads, kv_heads // config.kv_heads) for name in ("key", "value"))
        if config.family in ("qwen3", "gemma3"):
            queries, keys = Norm(config, name="query_norm")(queries), Norm(config, name="key_norm")(keys)
        angles, window = (places.cosines, places.sines), None
        if config.sliding_window is not None:
            angles = jax.tree.map(functools.partial(jnp.where, is_local), places.local, angles)
            window = Window(config.sliding_window, is_local)
        queries, keys = (rotate(vectors, *angles) for vectors in (queries, keys))
        if config.query_pre_attn_scalar not in (None, config.head_width):  # by whose root kernels divide
            queries *= jnp.asarray((config.head_width / config.query_pre_attn_scalar) ** 0.5, queries.dtype)
        if cache is None:
            kernel = attention_kernel(config, time, self.mesh)
            out = flash_attention(kernel, queries, keys, values, places.segments, self.mesh, window, places.positions)
        else:
            out, cache = cache.attend(layer, places.positions, queries, keys, values, window)
        out = out.reshape(batch, time, config.heads * config.head_width)
        return Linear(config.width, ("heads", "embed"), lora=config.lora, name="output")(out), cache


class GatedMLP(nn.Module):
    """SwiGLU, or in Gemma GeGLU (Shazeer, 2020) with the approximate GELU."""

    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "batch time width"]) -> Float[Array, "batch time width"]:
        config = self.config
        inwards = functools.partial(Linear, config.mlp_width, ("embed", "mlp"), lora=config.lora)
        gate, up = inwards(name="gate")(x), inwards(name="up")(x)
        activation = jax.nn.gelu if config.gemma else jax.nn.silu
        inner = constrain(activation(gate) * up, self.mesh, "batch", None, "mlp")
        return Linear(config.width, ("mlp", "embed"), lora=config.lora, name="down")(inner)


class Block(nn.Module):
    config: DecoderConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, carry, layer, is_local, places: Places):
        hidden, cache = carry
        norm = functools.partial(Norm, self.config)
        update, cache = Attention(self.config, self.mesh, name="attention")(
            norm(name="attention_norm")(hidden), cache, layer, is_local, places
        )
        hidden = hidden + (norm(name="attention_post_norm")(update) if self.config.gemma else update)
        update = GatedMLP(self.config, self.mesh, name="mlp")(norm(name="mlp_norm")(hidden))
        hidden = hidden + (norm(name="mlp_post_norm")(update) if self.config.gemma else update)
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
        places = Places.of(config, positions, segments)
        hidden = constrain(_embedded(config, embedding, tokens), self.mesh, "batch", None, None)
        unrolls = config.unroll_layers
        if unrolls is None:  # the form with a stacked cache is for TPUs, which read the slices of a scan in place
            platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
            unrolls = cache is None and platform == "cpu" and config.remat == "none"
        block = Block
        if config.remat != "none":
            block = nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=unrolls)
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, nn.broadcast),
            length=config.layers,
            unroll=config.layers if unrolls else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, self.mesh, name="layers")
        numbers = jnp.arange(config.layers)
        is_local = None if config.sliding_window is None else ~jnp.isin(numbers, jnp.array(config.global_layers, int))
        (hidden, cache), _ = layers((hidden, cache), numbers, is_local, places)
        return Norm(config, name="final_norm")(hidden), cache


def _embedded(config: DecoderConfig, embedding: Array, tokens: Int[Array, "batch time"]) -> Array:
    hidden = embedding[tokens].astype(config.dtype)
    # Gemma was trained with the root of the width rounded to the dtype
    return hidden * jnp.asarray(config.width**0.5, config.dtype) if config.gemma else hidden


AnyCache = TypeVar("AnyCache", bound=KeyValueCache | ChunkCache | tuple[KeyValueCache | RowsCache, ...])
TRACING = threading.RLock()  # Flax modifies a class while it derives another, and lanes trace at the same time


def forward(
    config: DecoderConfig,
    params: Any,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    cache: AnyCache,
) -> tuple[Float[Array, "batch time width"], AnyCache]:
    """Computes final hidden states of new tokens that attend to the cache, and the extended cache.

    With a cache for each layer, `params["layers"]` are the parameters of each, not stacked.
    """
    with TRACING:
        if not isinstance(cache, tuple):
            return Decoder(config).apply({"params": params}, tokens, positions, cache=cache)
        places, extended = Places.of(config, positions), []
        hidden = _embedded(config, params["embedding"], tokens)
        for number, (layer, its_cache) in enumerate(zip(params["layers"], cache, strict=True)):
            hidden, its_cache = _apply_layer(config, config.is_local(number), layer, hidden, its_cache, places)
            extended.append(its_cache)
        whole: Any = tuple(extended)
        return Norm(config).apply({"params": params["final_norm"]}, hidden), whole


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)  # traced once for all layers, and then inlined
def _apply_layer(config: DecoderConfig, is_local: bool, params, hidden, cache, places):
    (hidden, cache), _ = Block(config).apply({"params": params}, (hidden, cache), None, is_local, places)
    return hidden, cache


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


# --- The unembedding ---

MAX_LOGITS = 2**25  # elements of the largest block of logits that a device holds (128 MiB in float32)
WORDS_OF_A_TILE = 128  # blocks are multiples of this tile of the accelerators' matrix units


def unembed(config: DecoderConfig, params: PyTree, hidden: Float[Array, "*axes width"]) -> Float[Array, "*axes words"]:
    """Computes float32 logits of hidden states."""
    flat, table = hidden.reshape(-1, hidden.shape[-1]), params[_table(config)].astype(config.dtype)
    return _logits(flat, table, config.logit_softcap).reshape(*hidden.shape[:-1], -1)


def unembed_log_probabilities(
    config: DecoderConfig,
    params: PyTree,
    hidden: Float[Array, "batch time width"],
    targets: Int[Array, "batch time"],
    temperature: float | Float[Array, ""] = 1.0,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
    """Computes the log-probability of each target and the entropy in nats, at a sampling temperature.

    A device holds at most `MAX_LOGITS` logits at once. The temperature carries no gradient. On a mesh that
    shares parameters and rows, each device processes its own words with its own rows: only sums over words, and each
    block of the table and of its gradient once, cross devices.
    """
    plan = _Plan(config.compute_dtype, mesh if mesh is not None and mesh.size > 1 else None, config.logit_softcap)
    return _scores(plan, params[_table(config)], hidden, targets, jnp.asarray(temperature, jnp.float32))


def _table(config: DecoderConfig) -> str:
    """Names the parameter whose rows score the words: the embedding itself where the two are tied."""
    return "embedding" if config.tie_embeddings else "unembedding"


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The compute dtype, the mesh axes of each logical axis (none on one device), and the cap of logits, if any."""

    compute_dtype: str
    mesh: Mesh | None
    softcap: float | None

    def axes(self, name: str) -> tuple[str, ...]:
        if self.mesh is None:
            return ()
        [axes] = logical_sharding(self.mesh, name).spec
        return axes if isinstance(axes, tuple) else (axes,) if axes else ()

    def spec(self, *names: str | None) -> PartitionSpec:
        return PartitionSpec(*(self.axes(name) or None if name else None for name in names))

    def on_devices(self, function: Callable, inputs: tuple, outputs: Any) -> Callable:
        """Maps `function` over the devices' own parts of its arguments."""
        bound = functools.partial(function, self)
        if self.mesh is None:
            return bound
        return jax.shard_map(bound, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def columns(self, table: Float[Array, "words share"], start, count: int) -> Float[Array, "{count} width"]:
        """Reads rows of this device's words, in the compute dtype and full width."""
        rows = jax.lax.dynamic_slice_in_dim(table, start, count).astype(self.compute_dtype)
        axes = self.axes("embed")
        return jax.lax.all_gather(rows, axes, axis=1, tiled=True) if axes else rows

    def summed_columns(self, gradient: Float[Array, "count width"]) -> Float[Array, "count share"]:
        """Sums over all rows of the batch; this device keeps its share of the width."""
        shared = self.axes("embed")
        others = tuple(axis for axis in self.axes("batch") if axis not in shared)
        gradient = jax.lax.psum(gradient, others) if others else gradient
        return jax.lax.psum_scatter(gradient, shared, scatter_dimension=1, tiled=True) if shared else gradient

    def over_words(self, array: Array, reduction: Callable = jax.lax.psum) -> Array:
        """Reduces the devices' results for their own words."""
        axes = self.axes("vocabulary")
        return reduction(array, axes) if axes else array

    def first_word(self, words: int) -> Int[Array, ""] | int:
        """Returns the id of this device's first word."""
        axes = self.axes("vocabulary")
        return jax.lax.axis_index(axes) * words if axes else 0


class _Sums(NamedTuple):
    """Running sums over the logits of the words so far; exponentials are relative to the highest logit."""

    highest: Float[Array, "positions"]
    exponentials: Float[Array, "positions"]
    weighted: Float[Array, "positions"]  # exponentials x logits
    picked: Float[Array, "positions"]  # logits of the targets


def _logits(hidden: Float[Array, "positions width"], columns: Float[Array, "words width"], softcap: float | None):
    logits = jnp.einsum("nd,vd->nv", hidden, columns, preferred_element_type=jnp.float32)
    return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def block_size(words: int, positions: int) -> int:
    """Returns the words of a block: as even as possible, whole tiles, at least one."""
    largest = max(1, MAX_LOGITS // positions)
    even = -(-words // -(-words // largest))
    return min(words, -(-even // WORDS_OF_A_TILE) * WORDS_OF_A_TILE)


def _over_blocks(words: int, size: int, add: Callable, carry):
    """Folds `add(carry, start, count)` over blocks of words; the last block may be smaller."""
    full, rest = divmod(words, size)
    carry = jax.lax.fori_loop(0, full, lambda number, carry: add(carry, number * size, size), carry)
    return add(carry, full * size, rest) if rest else carry


def _local_sums(plan: _Plan, table, hidden, targets, temperature, *, keep: bool):
    """Returns log-probabilities, entropies and log-normalisers of this device's rows, and its kept logits.

    The kept values are the exponentials and the highest logits, if `keep` is set and one block holds all words.
    """
    flat, flat_targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    words, (positions, _) = len(table), flat.shape
    wanted = flat_targets - plan.first_word(words)

    def add(sums: _Sums, start, count: int) -> tuple[_Sums, Array]:
        logits = _logits(flat, plan.columns(table, start, count), plan.softcap) / temperature
        highest = jnp.maximum(sums.highest, jnp.max(logits, axis=1))
        exponentials, shrink = jnp.exp(logits - highest[:, None]), jnp.exp(sums.highest - highest)
        chosen = jnp.arange(count) + start == wanted[:, None]
        new = _Sums(
            highest,
            sums.exponentials * shrink + jnp.sum(exponentials, axis=1),
            sums.weighted * shrink + jnp.sum(exponentials * logits, axis=1),
            sums.picked + jnp.sum(jnp.where(chosen, logits, 0.0), axis=1),
        )
        return new, exponentials

    zeros, kept = jnp.zeros(positions, jnp.float32), None
    nothing = _Sums(jnp.full(positions, -jnp.inf, jnp.float32), zeros, zeros, zeros)
    size = block_size(words, positions)
    if keep and plan.softcap is None and size == words:  # a cap's gradient needs the logits themselves
        sums, exponentials = add(nothing, 0, words)
        kept = exponentials, sums.highest[:, None]
    else:
        sums = _over_blocks(words, size, lambda *block: add(*block)[0], nothing)
    highest = plan.over_words(sums.highest, jax.lax.pmax)
    shrink = jnp.exp(sums.highest - highest)
    exponentials = plan.over_words(sums.exponentials * shrink)
    mean = plan.over_words(sums.weighted * shrink) / exponentials
    normaliser = highest + jnp.log(exponentials)
    results = plan.over_words(sums.picked) - normaliser, normaliser - mean, normaliser
    return *(result.reshape(targets.shape) for result in results), kept


def _local_gradients(plan: _Plan, table, hidden, targets, temperature, normaliser, kept, gradient, *of_entropy):
    """Returns the gradients of this device's part of the table and of the hidden states.

    `of_entropy` has the entropies and their gradient if the loss depends on them.
    """
    flat, scale = hidden.reshape(-1, hidden.shape[-1]), (gradient / temperature).reshape(-1)
    flat_targets, flat_normaliser = targets.reshape(-1), normaliser.reshape(-1)
    words = len(table)
    wanted = flat_targets - plan.first_word(words)

    def add(gradients, start, count: int):
        of_table, of_hidden = gradients
        columns = plan.columns(table, start, count)
        slope: Array | float = 1.0  # of the capped logits
        if kept is None:
            logits = _logits(flat, columns, plan.softcap)
            probabilities = jnp.exp(logits / temperature - flat_normaliser[:, None])
            slope = 1.0 if plan.softcap is None else 1 - (logits / plan.softcap) ** 2
        else:
            exponentials, highest = kept
            probabilities = exponentials * jnp.exp(highest - flat_normaliser[:, None])
        chosen = jnp.arange(count) + start == wanted[:, None]
        of_logits = scale[:, None] * (chosen - probabilities)
        if of_entropy:  # dH/dz = -p (log p + H)
            entropies, scales = (array.reshape(-1, 1) for array in of_entropy)
            information = jax.scipy.special.xlogy(probabilities, probabilities) + probabilities * entropies
            of_logits -= scales / temperature * information
        of_logits = (of_logits * slope).astype(plan.compute_dtype)
        of_hidden += jnp.einsum("nv,vd->nd", of_logits, columns, preferred_element_type=jnp.float32)
        of_columns = jnp.einsum("nv,nd->vd", of_logits, flat, preferred_element_type=jnp.float32)
        of_columns = plan.summed_columns(of_columns).astype(table.dtype)
        return jax.lax.dynamic_update_slice_in_dim(of_table, of_columns, start, axis=0), of_hidden

    nothing = jnp.zeros_like(table), jnp.zeros(flat.shape, jnp.float32)
    of_table, of_hidden = _over_blocks(words, block_size(words, len(flat)), add, nothing)
    return of_table, plan.over_words(of_hidden).reshape(hidden.shape).astype(hidden.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(plan: _Plan, table, hidden, targets, temperature):
    log_probabilities, entropies, _, _ = _all_sums(plan, False, table, hidden, targets, temperature)
    return log_probabilities, entropies


def _all_sums(plan: _Plan, keep: bool, *arguments):
    rows, words = plan.spec("batch", None), plan.spec("vocabulary", "embed")
    inputs = words, plan.spec("batch", None, None), rows, PartitionSpec()
    kept = plan.spec("batch", "vocabulary")
    return plan.on_devices(functools.partial(_local_sums, keep=keep), inputs, (rows, rows, rows, kept))(*arguments)


def _scores_forward(plan: _Plan, *arguments):
    arguments = tuple(argument.value for argument in arguments)
    log_probabilities, entropies, normaliser, kept = _all_sums(plan, True, *arguments)
    return (log_probabilities, entropies), ((*arguments, normaliser, kept), entropies)


def _scores_backward(plan: _Plan, residuals, gradient):
    kept, entropies = residuals
    of_log_probabilities, of_entropies = gradient
    if isinstance(of_log_probabilities, SymbolicZero):
        of_log_probabilities = jnp.zeros_like(entropies)
    # Most losses do not depend on the entropy, and its gradient costs another pass over the logits.
    of_entropy = () if isinstance(of_entropies, SymbolicZero) else (entropies, of_entropies)
    rows, words, states = plan.spec("batch", None), plan.spec("vocabulary", "embed"), plan.spec("batch", None, None)
    of_kept = plan.spec("batch", "vocabulary")
    inputs = words, states, rows, PartitionSpec(), rows, of_kept, rows, *(rows for _ in of_entropy)
    gradients = plan.on_devices(_local_gradients, inputs, (words, states))
    of_table, of_hidden = gradients(*kept, of_log_probabilities, *of_entropy)
    return of_table, of_hidden, None, jnp.zeros((), jnp.float32)


_scores.defvjp(_scores_forward, _scores_backward, symbolic_zeros=True)
