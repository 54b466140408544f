"""The slots: one pytree of fixed shape, the pure functions that change it, and their compilation.

Invariant: a slot's last token is `pending`; the cache holds the keys and values of all tokens before it. Appending and
decoding both start by feeding the pending token. Positions beyond a slot's length hold arbitrary values, which are
overwritten before anything attends to them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Lowered
from jaxtyping import Array, Bool, Float, Int, UInt

from lcrag.policy import (
    DecoderConfig,
    KeyValueCache,
    logical_sharding,
    replicated,
    unembed,
)
from lcrag.sampling.choice import choose, streams, uniforms
from lcrag.sampling.decode_caches import appended, in_place, per_layer
from lcrag.sampling.drafts import drafted, with_tokens
from lcrag.sampling.forms import Cache, SamplerForm
from lcrag.sampling.parameters import SlotParameters
from lcrag.sampling.rows import per_slot, with_per_slot
from lcrag.sampling.stop import FOUND

CONTINUES, STOPPED, ENDED, FULL = range(4)  # why a slot left a block; the last three in the order of FINISH_REASONS
CHECK_EVERY = 4  # on several devices, decode steps between checks whether enough slots have finished


class Slots(NamedTuple):
    """The state of all slots.

    Attributes:
      cache: Keys and values.
      pending: Last token of each context, not yet in the cache.
      lengths: Tokens in each context, the pending one included.
      running: Whether the slot is sampling.
      parameters: How each slot samples.
      history: The tokens of each context, the pending one included; None without drafts.
    """

    cache: Cache
    pending: Int[Array, "slots"]
    lengths: Int[Array, "slots"]
    running: Bool[Array, "slots"]
    parameters: SlotParameters
    history: Int[Array, "slots context"] | None = None


class DecodeReport(NamedTuple):
    """The result of one block of decoding.

    Attributes:
      tokens: Sampled tokens, left-aligned.
      log_probabilities: Of these tokens.
      counts: Tokens sampled in each slot.
      passes: Steps that sampled in each slot; without drafts as many as tokens.
      reasons: CONTINUES, STOPPED, ENDED or FULL.
      steps: Decode steps of the block.
    """

    tokens: Int[Array, "slots block"]
    log_probabilities: Float[Array, "slots block"]
    counts: Int[Array, "slots"]
    passes: Int[Array, "slots"]
    reasons: Int[Array, "slots"]
    steps: Int[Array, ""]


def empty_slots(form: SamplerForm, slots: int, context: int, drafts: int = 0) -> Slots:
    """Returns slots without contexts, with their tokens if there are drafts."""
    return Slots(
        cache=form.empty_cache(slots, context),
        pending=jnp.zeros(slots, jnp.int32),
        lengths=jnp.zeros(slots, jnp.int32),
        running=jnp.zeros(slots, bool),
        parameters=jax.tree.map(jnp.asarray, SlotParameters.empty(slots)),
        history=jnp.zeros((slots, context), jnp.int32) if drafts else None,
    )


def slot_shardings(form: SamplerForm, drafts: int = 0) -> Slots:
    """Spreads slots over the mesh's batch axes and key-value heads over its tensor axis."""
    row = logical_sharding(form.mesh, "slots")
    parameters = SlotParameters(*[row] * len(SlotParameters._fields))
    return Slots(form.cache_shardings, row, row, row, parameters, row if drafts else None)


def append(
    config: DecoderConfig,
    window: int,
    params,
    slots: Slots,
    rows: Int[Array, "shares rows"],
    lengths: Int[Array, "shares rows"],
    tokens: Int[Array, "shares rows chunk"],
    counts: Int[Array, "shares rows"],
    mesh: Mesh | None = None,
) -> Slots:
    """Appends environment tokens to the contexts of some slots (chunked prefill) and stops these slots.

    Slots are divided into equal consecutive shares, and each share extends its own slots, so on a mesh no cache leaves
    its device.

    Args:
      config: The decoder.
      window: Number of cache positions read; every row's new length must fit.
      params: The decoder's parameters.
      slots: All slots.
      rows: The slots to extend, counted from the first of their share; the size of a share marks padding.
      lengths: Their current lengths; 0 starts a new context.
      tokens: New tokens, right-padded.
      counts: Number of new tokens of each row.
      mesh: The devices, for kernels that XLA does not partition.
    """
    chunk = tokens.shape[-1]
    pending = per_slot(slots.pending, rows)
    new, present = tokens.reshape(-1, chunk), lengths.reshape(-1)
    shifted = jnp.concatenate([pending[:, None], new[:, :-1]], axis=1)
    fed = jnp.where(present[:, None] == 0, new, shifted)
    first = jnp.maximum(present - 1, 0)
    last = jnp.take_along_axis(tokens, counts[..., None] - 1, axis=2).reshape(-1)
    history = slots.history
    if history is not None:
        known = with_tokens(per_slot(history, rows), present[:, None] + jnp.arange(chunk), new)
        history = with_per_slot(history, rows, known)
    return slots._replace(
        cache=appended(config, window, params, slots.cache, rows, fed, first, mesh),
        pending=with_per_slot(slots.pending, rows, last),
        lengths=with_per_slot(slots.lengths, rows, (lengths + counts).reshape(-1)),
        running=with_per_slot(slots.running, rows, jnp.zeros(rows.size, bool)),
        history=history,
    )


def fork(window: int, slots: Slots, source: Int[Array, ""], targets: Int[Array, "targets"]) -> Slots:
    """Copies one slot's context to others and stops these; a target equal to the number of slots is padding."""

    def copied(x):
        original = jax.lax.dynamic_slice_in_dim(x, source, 1, axis=-4)[..., :window, :]
        return x.at[..., targets, :, :window, :].set(original, mode="drop")

    return slots._replace(
        cache=jax.tree.map(copied, slots.cache),
        pending=slots.pending.at[targets].set(slots.pending[source], mode="drop"),
        lengths=slots.lengths.at[targets].set(slots.lengths[source], mode="drop"),
        running=slots.running.at[targets].set(False, mode="drop"),
        history=None if slots.history is None else slots.history.at[targets].set(slots.history[source], mode="drop"),
    )


def begin(slots: Slots, starting: Bool[Array, "slots"], new: SlotParameters) -> Slots:
    """Starts sampling in the marked slots with their new parameters; the others keep theirs."""
    parameters = jax.tree.map(lambda new, old: jnp.where(starting, new, old), new, slots.parameters)
    return slots._replace(running=slots.running | starting, parameters=parameters)


def decode(
    config: DecoderConfig,
    window: int,
    block: int,
    params,
    slots: Slots,
    table: UInt[Array, "states vocabulary"],
    eos_ids: Int[Array, "eos"],
    wanted: Int[Array, ""],
    rows: Int[Array, "shares rows"] | None = None,
    check_every: int = CHECK_EVERY,
    drafts: int = 0,
    shares: int = 1,
) -> tuple[Slots, DecodeReport]:
    """Samples up to `block` tokens in every running slot, at least one at each step.

    Ends early once `wanted` slots have finished in this block or none is running.

    Args:
      config: The decoder.
      window: Number of cache positions read.
      block: Most tokens of a slot.
      params: The decoder's parameters.
      slots: All slots.
      table: The stop automaton.
      eos_ids: Tokens that end a text.
      wanted: Number of finished slots that ends the block.
      rows: The slots to compute, as in `append`; must include all running ones, and are the rows of the report. None:
        all slots.
      check_every: Steps between checks for the early end; the count is a collective where there are several devices.
      drafts: Tokens drafted and verified at each step in addition to the one that is sampled; see `drafted`.
      shares: Equal consecutive parts of the slots, one for each group of devices that divides them.
    """
    everyone = slots
    if rows is not None:
        slots = _chosen(everyone, rows)
    parameters, first = slots.parameters, slots.lengths - 1
    keys = streams(parameters.seed, parameters.episode)
    takes_out = config.unroll_layers and isinstance(slots.cache, KeyValueCache)
    cache = (per_layer if takes_out else in_place)(config, window, params, everyone.cache, rows, shares)

    def samples(slots: Slots, report: DecodeReport) -> Bool[Array, "slots"]:
        return slots.running & (report.counts < block)

    def goes_on(carry):
        slots, report = carry
        finished = jnp.sum(report.reasons != CONTINUES)
        enough = (finished >= wanted) | ~jnp.any(samples(slots, report))
        return (report.steps < block) & ~(enough & (report.steps % check_every == 0))

    def step(carry):
        slots, report = carry
        tried, ahead = _tried(slots, window, drafts), jnp.arange(drafts + 1)
        places = jnp.maximum(slots.lengths - 1, 0)  # an empty slot must attend to something, or its softmax is 0 / 0
        hidden, seen = cache.feed(slots.cache, tried, places[:, None] + ahead)
        uniform = jax.vmap(uniforms, (None, 1), 1)(keys, slots.lengths[:, None] + ahead)
        tokens, scores = _sampled(config, params, hidden, uniform, parameters)
        slots, right = slots._replace(cache=seen), samples(slots, report)
        report = report._replace(steps=report.steps + 1, passes=report.passes + right)
        for place in range(drafts + 1):
            slots, report = _advance(slots, report, right, tokens[:, place], scores[:, place], table, eos_ids)
            if place < drafts:
                right &= samples(slots, report) & (tokens[:, place] == tried[:, place + 1])
        return slots, report

    start = slots._replace(cache=cache.start), _empty_report(len(slots.pending), block)
    slots, report = jax.lax.while_loop(goes_on, step, start)
    slots = slots._replace(cache=cache.end(slots.cache, jnp.maximum(first, 0), block))
    return (slots if rows is None else _with_chosen(everyone, rows, slots)), report


def _chosen(slots: Slots, rows: Int[Array, "shares rows"]) -> Slots:
    """Returns some slots, with the cache of all; padding is not running."""
    padding = (rows == slots.pending.shape[0] // rows.shape[0]).reshape(-1)
    chosen = Slots(slots.cache, *jax.tree.map(lambda x: per_slot(x, rows), tuple(slots[1:])))
    return chosen._replace(running=chosen.running & ~padding)


def _with_chosen(slots: Slots, rows: Int[Array, "shares rows"], chosen: Slots) -> Slots:
    """Returns all slots with the new state of some; `chosen` has the cache of all."""
    new = jax.tree.map(lambda x, new: with_per_slot(x, rows, new), tuple(slots[1:]), tuple(chosen[1:]))
    return Slots(chosen.cache, *new)


def _empty_report(slots: int, block: int) -> DecodeReport:
    return DecodeReport(
        tokens=jnp.zeros((slots, block), jnp.int32),
        log_probabilities=jnp.zeros((slots, block), jnp.float32),
        counts=jnp.zeros(slots, jnp.int32),
        passes=jnp.zeros(slots, jnp.int32),
        reasons=jnp.full(slots, CONTINUES, jnp.int32),
        steps=jnp.zeros((), jnp.int32),
    )


def _tried(slots: Slots, window: int, drafts: int) -> Int[Array, "slots tried"]:
    """Returns the tokens that a step feeds: the pending one and those drafted after it."""
    pending = slots.pending[:, None]
    if not drafts:
        return pending
    assert slots.history is not None, "slots keep no tokens to draft from"
    return jnp.concatenate([pending, drafted(slots.history[:, :window], slots.lengths, drafts)], axis=1)


def _sampled(
    config: DecoderConfig,
    params,
    hidden: Float[Array, "slots tried width"],
    uniform: Float[Array, "slots tried"],
    parameters: SlotParameters,
) -> tuple[Int[Array, "slots tried"], Float[Array, "slots tried"]]:
    """Samples a token at each position, and returns it with its log-probability."""
    scaling = parameters.temperature, parameters.top_p, parameters.unscaled_scores
    each = [jnp.repeat(x, uniform.shape[1]) for x in scaling]
    flat, draws = hidden.reshape(-1, hidden.shape[-1]), uniform.reshape(-1)
    tokens, scores = choose(unembed(config, params, flat), draws, *each)
    return tokens.reshape(uniform.shape), scores.reshape(uniform.shape)


def _advance(
    slots: Slots, report: DecodeReport, right: Bool[Array, "slots"], chosen, log_probabilities, table, eos_ids
) -> tuple[Slots, DecodeReport]:
    """Records one token in the slots whose draft was right so far, and stops slots that finish with it."""
    lengths, parameters = slots.lengths + right, slots.parameters
    automaton = jnp.where(right, table[parameters.stop.astype(jnp.int32), chosen], parameters.stop)
    reasons = jnp.select(
        [jnp.any(chosen[:, None] == eos_ids, axis=1), automaton == FOUND, lengths >= parameters.limit],
        [ENDED, STOPPED, FULL],
        CONTINUES,
    )
    at = jnp.arange(len(chosen)), jnp.where(right, report.counts, report.tokens.shape[1])
    report = report._replace(
        tokens=report.tokens.at[at].set(chosen, mode="drop"),
        log_probabilities=report.log_probabilities.at[at].set(log_probabilities, mode="drop"),
        counts=report.counts + right,
        reasons=jnp.where(right, reasons, report.reasons),
    )
    history = slots.history
    if history is not None:
        places = jnp.where(right, slots.lengths, history.shape[1])
        history = with_tokens(history, places[:, None], chosen[:, None])
    slots = slots._replace(
        pending=jnp.where(right, chosen, slots.pending),
        lengths=lengths,
        running=slots.running & (~right | (reasons == CONTINUES)),
        parameters=parameters._replace(stop=automaton),
        history=history,
    )
    return slots, report


class CompiledFunctions:
    """`append`, `fork`, `begin` and `decode`, compiled ahead of time once per static shape.

    Slots and contexts must not change; see `compiled_functions`.
    """

    def __init__(self, form: SamplerForm, block: int, drafts: int = 0):
        self._form, self._config, self._mesh, self._block = form, form.decoder, form.mesh, block
        self._shardings, self._everywhere = slot_shardings(form, drafts), replicated(form.mesh)
        self._drafts = drafts
        self._compiled: dict[tuple, Any] = {}

    @property
    def count(self) -> int:
        """Number of compiled shapes."""
        return len(self._compiled)

    def empty(self, slots: int, context: int) -> Slots:
        create = functools.partial(empty_slots, self._form, slots, context, self._drafts)
        return self._run(("empty",), jax.jit(create, out_shardings=self._shardings).lower, ())

    def append(self, window: int, *arguments) -> Slots:
        lower = functools.partial(self.lower_append, window)
        return self._run(("append", window, arguments[-2].shape), lower, arguments)

    def fork(self, window: int, *arguments) -> Slots:
        lower = functools.partial(self._lower, functools.partial(fork, window), donated=0)
        return self._run(("fork", window), lower, arguments)

    def begin(self, *arguments) -> Slots:
        return self._run(("begin",), functools.partial(self._lower, begin, donated=0), arguments)

    def decode(self, window: int, drafts: int, *arguments) -> tuple[Slots, DecodeReport]:
        lower = functools.partial(self.lower_decode, window, drafts=drafts)
        return self._run(("decode", window, drafts, *(each.shape for each in arguments[2:])), lower, arguments)

    def lower_append(self, window: int, *arguments) -> Lowered:
        """Traces `append` for arrays, or for `jax.ShapeDtypeStruct`s with shardings."""
        return self._lower(functools.partial(append, self._config, window, mesh=self._mesh), *arguments, donated=1)

    def lower_decode(self, window: int, *arguments, drafts: int = 0) -> Lowered:
        """Traces `decode` for arrays, or for `jax.ShapeDtypeStruct`s with shardings."""
        check_every = 1 if self._mesh.size == 1 else CHECK_EVERY
        shape = self._config, window, self._block
        shares = self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        function = functools.partial(decode, *shape, check_every=check_every, drafts=drafts, shares=shares)
        return self._lower(function, *arguments, donated=1, outputs=(self._shardings, self._everywhere))

    def _lower(self, function: Callable, *arguments, donated: int, outputs=None) -> Lowered:
        return jax.jit(function, donate_argnums=donated, out_shardings=outputs or self._shardings).lower(*arguments)

    def _run(self, key: tuple, lower: Callable[..., Lowered], arguments: tuple):
        if key not in self._compiled:
            self._compiled[key] = lower(*arguments).compile()
        return self._compiled[key](*arguments)


@functools.lru_cache(maxsize=32)
def compiled_functions(form: SamplerForm, slots: int, context: int, block: int, drafts: int) -> CompiledFunctions:
    """Returns the compiled functions, which all samplers of these sizes share."""
    return CompiledFunctions(form, block, drafts)
