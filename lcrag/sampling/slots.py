"""The slots: one pytree of fixed shape, and the pure functions that change it. Device code only.

Invariant: a slot's last token is `pending`; the cache holds the keys and values of all tokens
before it. Appending and decoding both begin by feeding the pending token. Positions beyond a
slot's length hold rubbish that is overwritten before anything attends to it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt

from lcrag.policy import DecoderConfig, KeyValueCache, empty_cache, forward, unembed
from lcrag.sampling.choice import choose, streams, uniforms
from lcrag.sampling.stop import FOUND

CONTINUES, STOPPED, ENDED, FULL = range(4)  # why a slot left a block; the last three as in FINISH_REASONS
CHECK_EVERY = 4  # steps between looks at how many slots want the host


class Slots(NamedTuple):
    """The state of all slots.

    Attributes:
      cache: Keys and values.
      pending: Last token of each context, not yet in the cache.
      lengths: Tokens in each context, the pending one included.
      running: Whether the slot is sampling.
      automaton: State of the stop automaton.
      limits: Length at which sampling ends.
      temperatures: Sampling temperatures.
      top_ps: Nucleus masses.
      seeds: With `episodes`, the random stream.
      episodes: See `seeds`.
    """

    cache: KeyValueCache
    pending: Int[Array, "slots"]
    lengths: Int[Array, "slots"]
    running: Bool[Array, "slots"]
    automaton: UInt[Array, "slots"]
    limits: Int[Array, "slots"]
    temperatures: Float[Array, "slots"]
    top_ps: Float[Array, "slots"]
    seeds: UInt[Array, "slots"]
    episodes: UInt[Array, "slots"]


class Begin(NamedTuple):
    """New sampling parameters of the slots marked in `starting`; the rest are left as they are."""

    starting: Bool[Array, "slots"]
    automaton: UInt[Array, "slots"]
    limits: Int[Array, "slots"]
    temperatures: Float[Array, "slots"]
    top_ps: Float[Array, "slots"]
    seeds: UInt[Array, "slots"]
    episodes: UInt[Array, "slots"]


class Report(NamedTuple):
    """What one block of decoding tells the host.

    Attributes:
      tokens: Sampled tokens, left-aligned.
      log_probabilities: Theirs.
      counts: How many of them each slot sampled.
      reasons: CONTINUES, STOPPED, ENDED or FULL.
      steps: Steps that the block took.
    """

    tokens: Int[Array, "slots block"]
    log_probabilities: Float[Array, "slots block"]
    counts: Int[Array, "slots"]
    reasons: Int[Array, "slots"]
    steps: Int[Array, ""]


def empty_slots(config: DecoderConfig, slots: int, context: int, mesh: Mesh | None = None) -> Slots:
    """Slots without contexts; the mesh says how often the cache repeats key-value heads (see `empty_cache`)."""

    def zeros(dtype):
        return jnp.zeros(slots, dtype)

    return Slots(
        cache=empty_cache(config, slots, context, mesh),
        pending=zeros(jnp.int32),
        lengths=zeros(jnp.int32),
        running=zeros(bool),
        automaton=zeros(jnp.uint8),
        limits=zeros(jnp.int32),
        temperatures=zeros(jnp.float32),
        top_ps=zeros(jnp.float32),
        seeds=zeros(jnp.uint32),
        episodes=zeros(jnp.uint32),
    )


def append(
    config: DecoderConfig,
    window: int,
    params,
    slots: Slots,
    rows: Int[Array, "shares rows"],
    lengths: Int[Array, "shares rows"],
    tokens: Int[Array, "shares rows chunk"],
    counts: Int[Array, "shares rows"],
) -> Slots:
    """Puts environment tokens at the end of some slots' contexts (chunked prefill), which then do not sample.

    The slots are shared out evenly in order, and each share extends its own: on a mesh no cache leaves its device.

    Args:
      config: The decoder.
      window: Cache positions that are read; every row's new length must fit.
      params: The decoder's parameters.
      slots: All slots.
      rows: The slots to extend, counted from the first of their share; the size of a share is padding.
      lengths: Their present lengths; 0 begins a context afresh.
      tokens: New tokens, right-padded.
      counts: How many of them each row has.
    """
    chunk = tokens.shape[-1]
    pending = _rows_of(slots.pending[None], rows)[0]
    new, present = tokens.reshape(-1, chunk), lengths.reshape(-1)
    shifted = jnp.concatenate([pending[:, None], new[:, :-1]], axis=1)
    fed = jnp.where(present[:, None] == 0, new, shifted)
    positions = jnp.maximum(present - 1, 0)[:, None] + jnp.arange(chunk)
    mine = jax.tree.map(lambda x: _rows_of(x[:, :, :, :window], rows), slots.cache)
    _, mine = forward(config, params, fed, positions, mine)
    cache = jax.tree.map(lambda x, new: _with_rows(x, rows, new), slots.cache, mine)
    last = jnp.take_along_axis(tokens, counts[..., None] - 1, axis=2).reshape(1, -1)
    return slots._replace(
        cache=cache,
        pending=_with_rows(slots.pending[None], rows, last)[0],
        lengths=_with_rows(slots.lengths[None], rows, (lengths + counts).reshape(1, -1))[0],
        running=_with_rows(slots.running[None], rows, jnp.zeros((1, rows.size), bool))[0],
    )


def _rows_of(x: Shaped[Array, "layers slots *rest"], rows: Int[Array, "shares rows"]) -> Array:
    """Some slots of every share, share after share: [layers, shares x rows, ...]."""
    shared = x.reshape(x.shape[0], rows.shape[0], -1, *x.shape[2:])
    taken = jax.vmap(lambda mine, rows: mine[:, rows], in_axes=(1, 0), out_axes=1)(shared, rows)
    return taken.reshape(x.shape[0], -1, *x.shape[2:])


def _with_rows(x: Shaped[Array, "layers slots *rest"], rows: Int[Array, "shares rows"], new: Array) -> Array:
    """The inverse of `_rows_of`: `new` in the places of these slots; where it has fewer positions, the first ones."""
    shared = x.reshape(x.shape[0], rows.shape[0], -1, *x.shape[2:])
    parts = new.reshape(x.shape[0], *rows.shape, *new.shape[2:])

    def put(mine, rows, new):
        return mine.at[:, rows, *(slice(size) for size in new.shape[2:])].set(new, mode="drop")

    return jax.vmap(put, in_axes=(1, 0, 1), out_axes=1)(shared, rows, parts).reshape(x.shape)


def fork(window: int, slots: Slots, source: Int[Array, ""], targets: Int[Array, "targets"]) -> Slots:
    """Copies one slot's context to others, which then do not sample; the number of slots as a target is padding."""

    def copied(x):
        original = jax.lax.dynamic_slice_in_dim(x, source, 1, axis=1)[:, :, :, :window]
        return x.at[:, targets, :, :window].set(original, mode="drop")

    return slots._replace(
        cache=jax.tree.map(copied, slots.cache),
        pending=slots.pending.at[targets].set(slots.pending[source], mode="drop"),
        lengths=slots.lengths.at[targets].set(slots.lengths[source], mode="drop"),
        running=slots.running.at[targets].set(False, mode="drop"),
    )


def begin(slots: Slots, new: Begin) -> Slots:
    """Lets the marked slots sample from the next block on."""

    def merged(name: str):
        return jnp.where(new.starting, getattr(new, name), getattr(slots, name))

    names = ("automaton", "limits", "temperatures", "top_ps", "seeds", "episodes")
    return slots._replace(running=slots.running | new.starting, **{name: merged(name) for name in names})


def decode(
    config: DecoderConfig,
    window: int,
    block: int,
    params,
    slots: Slots,
    table: UInt[Array, "states vocabulary"],
    eos_ids: Int[Array, "eos"],
    wanted: Int[Array, ""],
) -> tuple[Slots, Report]:
    """Samples up to `block` tokens in every running slot.

    It leaves early only when `wanted` slots have finished in this block (or none is running), and looks
    at that count every few steps: leaving at the first stop would waste the block, and the count is a collective.
    """
    count = slots.pending.shape[0]
    keys = streams(slots.seeds, slots.episodes)
    report = Report(
        tokens=jnp.zeros((count, block), jnp.int32),
        log_probabilities=jnp.zeros((count, block), jnp.float32),
        counts=jnp.zeros(count, jnp.int32),
        reasons=jnp.full(count, CONTINUES, jnp.int32),
        steps=jnp.zeros((), jnp.int32),
    )
    # Only the positions that the longest running slot needs are read and carried through the loop.
    seen = slots._replace(cache=jax.tree.map(lambda x: x[:, :, :, :window], slots.cache))

    def goes_on(carry):
        slots, report = carry
        finished = jnp.sum(report.reasons != CONTINUES)
        enough = (finished >= wanted) | ~jnp.any(slots.running)
        return (report.steps < block) & ~(enough & (report.steps % CHECK_EVERY == 0))

    def step(carry):
        slots, report = carry
        places = jnp.maximum(slots.lengths - 1, 0)  # an empty slot must not divide by zero in its softmax
        hidden, cache = forward(config, params, slots.pending[:, None], places[:, None], slots.cache)
        uniform = uniforms(keys, slots.lengths)
        chosen, log_probabilities = choose(
            unembed(config, params, hidden[:, 0]), uniform, slots.temperatures, slots.top_ps
        )
        return _advance(slots._replace(cache=cache), report, chosen, log_probabilities, table, eos_ids)

    seen, report = jax.lax.while_loop(goes_on, step, (seen, report))
    cache = jax.tree.map(lambda x, new: x.at[:, :, :, :window].set(new), slots.cache, seen.cache)
    return seen._replace(cache=cache), report


def _advance(slots: Slots, report: Report, chosen, log_probabilities, table, eos_ids) -> tuple[Slots, Report]:
    """Records one step's tokens in the running slots and finds those that end with it."""
    running, lengths = slots.running, slots.lengths + slots.running
    automaton = jnp.where(running, table[slots.automaton.astype(jnp.int32), chosen], slots.automaton)
    reasons = jnp.select(
        [jnp.any(chosen[:, None] == eos_ids, axis=1), automaton == FOUND, lengths >= slots.limits],
        [ENDED, STOPPED, FULL],
        CONTINUES,
    )
    at = jnp.arange(len(chosen)), jnp.where(running, report.counts, report.tokens.shape[1])
    report = report._replace(
        tokens=report.tokens.at[at].set(chosen, mode="drop"),
        log_probabilities=report.log_probabilities.at[at].set(log_probabilities, mode="drop"),
        counts=report.counts + running,
        reasons=jnp.where(running, reasons, report.reasons),
        steps=report.steps + 1,
    )
    slots = slots._replace(
        pending=jnp.where(running, chosen, slots.pending),
        lengths=lengths,
        automaton=automaton,
        running=running & (reasons == CONTINUES),
    )
    return slots, report
