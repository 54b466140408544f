"""The unembedding: logits of hidden states, and log-probabilities that never materialise all logits.

With V words and N positions, log-probabilities and their gradient are computed over blocks of the vocabulary. The
logits [N, block] of a block are computed, reduced and dropped, and recomputed in the backward pass; if one block holds
the whole vocabulary, they are kept instead. Each block completes its rows of the table's gradient; with blocks of
positions, gradients [V, width] of all blocks would have to be added.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from lcrag.policy.config import DecoderConfig
from lcrag.policy.sharding import logical_sharding

MAX_LOGITS = 2**25  # elements of the largest block of logits that a device holds (128 MiB in float32)
WORDS_OF_A_TILE = 128  # blocks are multiples of this tile of the accelerators' matrix units


def unembed(config: DecoderConfig, params: PyTree, hidden: Float[Array, "*axes width"]) -> Float[Array, "*axes words"]:
    """Computes float32 logits of hidden states."""
    flat, table = hidden.reshape(-1, hidden.shape[-1]), params[_table(config)].astype(config.dtype)
    return _logits(flat, table).reshape(*hidden.shape[:-1], -1)


def unembed_log_probabilities(
    config: DecoderConfig,
    params: PyTree,
    hidden: Float[Array, "batch time width"],
    targets: Int[Array, "batch time"],
    temperature: float | Float[Array, ""] = 1.0,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
    """Computes the log-probability of each target and the entropy in nats, at a sampling temperature.

    A device holds at most `MAX_LOGITS` logits at once. Entropy and temperature carry no gradient. On a mesh that
    shares parameters and rows, each device processes its own words with its own rows: only sums over words, and each
    block of the table and of its gradient once, cross devices.
    """
    plan = _Plan(config.compute_dtype, mesh if mesh is not None and mesh.size > 1 else None)
    return _scores(plan, params[_table(config)], hidden, targets, jnp.asarray(temperature, jnp.float32))


def _table(config: DecoderConfig) -> str:
    """Names the parameter whose rows score the words: the embedding itself where the two are tied."""
    return "embedding" if config.tie_embeddings else "unembedding"


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The compute dtype, and the mesh axes of each logical axis (none on one device)."""

    compute_dtype: str
    mesh: Mesh | None

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


def _logits(hidden: Float[Array, "positions width"], columns: Float[Array, "words width"]):
    return jnp.einsum("nd,vd->nv", hidden, columns, preferred_element_type=jnp.float32)


def _block_size(words: int, positions: int) -> int:
    """Returns the words of a block: as even as possible, whole tiles, at least one."""
    largest = max(1, MAX_LOGITS // positions)
    even = -(-words // -(-words // largest))
    return min(words, -(-even // WORDS_OF_A_TILE) * WORDS_OF_A_TILE)


def keeps_logits(words: int, positions: int) -> bool:
    """Returns whether one block holds the whole vocabulary, so the backward pass does not recompute its logits."""
    return _block_size(words, positions) == words


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
        logits = _logits(flat, plan.columns(table, start, count)) / temperature
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
    if keep and keeps_logits(words, positions):
        sums, exponentials = add(nothing, 0, words)
        kept = exponentials, sums.highest[:, None]
    else:
        sums = _over_blocks(words, _block_size(words, positions), lambda *block: add(*block)[0], nothing)
    highest = plan.over_words(sums.highest, jax.lax.pmax)
    shrink = jnp.exp(sums.highest - highest)
    exponentials = plan.over_words(sums.exponentials * shrink)
    mean = plan.over_words(sums.weighted * shrink) / exponentials
    normaliser = highest + jnp.log(exponentials)
    results = plan.over_words(sums.picked) - normaliser, normaliser - mean, normaliser
    return *(result.reshape(targets.shape) for result in results), kept


def _local_gradients(plan: _Plan, table, hidden, targets, temperature, normaliser, kept, gradient):
    """Returns the gradients of this device's part of the table and of the hidden states."""
    flat, scale = hidden.reshape(-1, hidden.shape[-1]), (gradient / temperature).reshape(-1)
    flat_targets, flat_normaliser = targets.reshape(-1), normaliser.reshape(-1)
    words = len(table)
    wanted = flat_targets - plan.first_word(words)

    def add(gradients, start, count: int):
        of_table, of_hidden = gradients
        columns = plan.columns(table, start, count)
        if kept is None:
            probabilities = jnp.exp(_logits(flat, columns) / temperature - flat_normaliser[:, None])
        else:
            exponentials, highest = kept
            probabilities = exponentials * jnp.exp(highest - flat_normaliser[:, None])
        chosen = jnp.arange(count) + start == wanted[:, None]
        of_logits = (scale[:, None] * (chosen - probabilities)).astype(plan.compute_dtype)
        of_hidden += jnp.einsum("nv,vd->nd", of_logits, columns, preferred_element_type=jnp.float32)
        of_columns = jnp.einsum("nv,nd->vd", of_logits, flat, preferred_element_type=jnp.float32)
        of_columns = plan.summed_columns(of_columns).astype(table.dtype)
        return jax.lax.dynamic_update_slice_in_dim(of_table, of_columns, start, axis=0), of_hidden

    nothing = jnp.zeros_like(table), jnp.zeros(flat.shape, jnp.float32)
    of_table, of_hidden = _over_blocks(words, _block_size(words, len(flat)), add, nothing)
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


def _scores_forward(plan: _Plan, table, hidden, targets, temperature):
    *scores, normaliser, kept = _all_sums(plan, True, table, hidden, targets, temperature)
    return tuple(scores), (table, hidden, targets, temperature, normaliser, kept)


def _scores_backward(plan: _Plan, kept, gradient):
    rows, words, states = plan.spec("batch", None), plan.spec("vocabulary", "embed"), plan.spec("batch", None, None)
    inputs = words, states, rows, PartitionSpec(), rows, plan.spec("batch", "vocabulary"), rows
    gradients = plan.on_devices(_local_gradients, inputs, (words, states))
    of_table, of_hidden = gradients(*kept, gradient[0])
    return of_table, of_hidden, None, jnp.zeros((), jnp.float32)


_scores.defvjp(_scores_forward, _scores_backward)
