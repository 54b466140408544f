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

from lcrag.policy import DecoderConfig, KeyValueCache, logical_sharding, replicated, unembed
from lcrag.sampling.caches import Rows, appended, in_place, per_layer, per_slot, with_per_slot
from lcrag.sampling.choice import sample_token, streams, uniforms
from lcrag.sampling.forms import Cache, SamplerForm
from lcrag.sampling.settings import SlotParameters
from lcrag.sampling.stop import FOUND

CONTINUES, STOPPED, ENDED, FULL = range(4)  # why a slot left a block; the last three in the order of FINISH_REASONS
CHECK_EVERY = 4  # on several devices, decode steps between checks whether enough slots have finished


class Slots(NamedTuple):
    """The state of all slots."""

    cache: Cache
    pending: Int[Array, "slots"]  # last token of each context, not yet in the cache
    lengths: Int[Array, "slots"]  # tokens of each context, the pending one included
    running: Bool[Array, "slots"]  # whether the slot is sampling
    parameters: SlotParameters


class DecodeReport(NamedTuple):
    """The result of one block of decoding; the tokens of a slot are left-aligned."""

    tokens: Int[Array, "slots block"]
    log_probabilities: Float[Array, "slots block"]
    counts: Int[Array, "slots"]  # tokens sampled
    reasons: Int[Array, "slots"]  # CONTINUES, STOPPED, ENDED or FULL
    steps: Int[Array, ""]  # of the block


def empty_slots(form: SamplerForm, slots: int, context: int) -> Slots:
    """Returns slots without contexts."""
    return Slots(
        cache=form.empty_cache(slots, context),
        pending=jnp.zeros(slots, jnp.int32),
        lengths=jnp.zeros(slots, jnp.int32),
        running=jnp.zeros(slots, bool),
        parameters=jax.tree.map(jnp.asarray, SlotParameters.empty(slots)),
    )


def slot_shardings(form: SamplerForm) -> Slots:
    """Spreads slots over the mesh's batch axes and key-value heads over its tensor axis."""
    row = logical_sharding(form.mesh, "slots")
    return Slots(form.cache_shardings, row, row, row, SlotParameters(*[row] * len(SlotParameters._fields)))


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
      window: Number of cache positions read; every row's new length must fit.
      rows: The slots to extend, counted from the first of their share; the size of a share marks padding.
      lengths: Their current lengths; 0 starts a new context.
      tokens: New tokens, right-padded.
      counts: Number of new tokens of each row.
      mesh: The devices, for kernels that XLA does not partition.
    """
    pending = per_slot(slots.pending, rows)
    new, present = tokens.reshape(-1, tokens.shape[-1]), lengths.reshape(-1)
    # A context that goes on is fed its pending token first, and its last new token becomes the pending one.
    shifted = jnp.concatenate([pending[:, None], new[:, :-1]], axis=1)
    fed = jnp.where(present[:, None] == 0, new, shifted)
    last = jnp.take_along_axis(tokens, counts[..., None] - 1, axis=2).reshape(-1)
    return slots._replace(
        cache=appended(config, window, params, slots.cache, rows, fed, jnp.maximum(present - 1, 0), mesh),
        pending=with_per_slot(slots.pending, rows, last),
        lengths=with_per_slot(slots.lengths, rows, (lengths + counts).reshape(-1)),
        running=with_per_slot(slots.running, rows, jnp.zeros(rows.size, bool)),
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
    min_finished: Int[Array, ""],
    rows: Rows = None,
    check_every: int = CHECK_EVERY,
    shares: int = 1,
) -> tuple[Slots, DecodeReport]:
    """Samples up to `block` tokens in every running slot, one at each step.

    Ends early once `min_finished` slots have finished in this block or none is running.

    Args:
      window: Number of cache positions read.
      block: Maximum number of tokens of a slot.
      table: The stop automaton.
      eos_ids: Tokens that end a text.
      min_finished: Number of finished slots that ends the block.
      rows: The slots to compute, as in `append`; must include all running ones, and are the rows of the report. None:
        all slots.
      check_every: Steps between checks for the early end; the count is a collective where there are several devices.
      shares: Equal consecutive parts of the slots, one for each group of devices that divides them.
    """
    everyone = slots
    if rows is not None:  # the state of some slots with the cache of all, which the loop below takes apart itself
        padding = (rows == slots.pending.shape[0] // rows.shape[0]).reshape(-1)
        slots = Slots(slots.cache, *jax.tree.map(lambda x: per_slot(x, rows), tuple(slots[1:])))
        slots = slots._replace(running=slots.running & ~padding)
    first = slots.lengths - 1
    # A token's random number depends on (seed, episode, position) only, so that no choice of slots, rows, windows or
    # blocks, and no order of the episodes, changes a token.
    keys = streams(slots.parameters.seed, slots.parameters.episode)
    takes_out = config.unroll_layers and isinstance(slots.cache, KeyValueCache)
    cache = (per_layer if takes_out else in_place)(config, window, params, everyone.cache, rows, shares)

    def goes_on(carry: tuple[Slots, DecodeReport]) -> Bool[Array, ""]:
        slots, report = carry
        enough = (jnp.sum(report.reasons != CONTINUES) >= min_finished) | ~jnp.any(slots.running)
        return (report.steps < block) & ~(enough & (report.steps % check_every == 0))

    def step(carry: tuple[Slots, DecodeReport]) -> tuple[Slots, DecodeReport]:
        slots, report = carry
        running, parameters = slots.running, slots.parameters
        # an empty slot must attend to something, or its softmax is 0 / 0
        places = jnp.maximum(slots.lengths - 1, 0)
        hidden, fed = cache.feed(slots.cache, slots.pending[:, None], places[:, None])
        scaling = parameters.temperature, parameters.top_p, parameters.unscaled_scores
        draws = uniforms(keys, slots.lengths)
        tokens, scores = sample_token(unembed(config, params, hidden[:, 0]), draws, *scaling)

        automaton = jnp.where(running, table[parameters.stop.astype(jnp.int32), tokens], parameters.stop)
        lengths = slots.lengths + running
        reasons = jnp.select(
            [jnp.any(tokens[:, None] == eos_ids, axis=1), automaton == FOUND, lengths >= parameters.limit],
            [ENDED, STOPPED, FULL],
            CONTINUES,
        )
        # what idle slots sample is dropped, because it is written beyond the end of their row
        at = jnp.arange(len(tokens)), jnp.where(running, report.counts, block)
        report = DecodeReport(
            tokens=report.tokens.at[at].set(tokens, mode="drop"),
            log_probabilities=report.log_probabilities.at[at].set(scores, mode="drop"),
            counts=report.counts + running,
            reasons=jnp.where(running, reasons, report.reasons),
            steps=report.steps + 1,
        )
        slots = Slots(
            cache=fed,
            pending=jnp.where(running, tokens, slots.pending),
            lengths=lengths,
            running=running & (reasons == CONTINUES),
            parameters=parameters._replace(stop=automaton),
        )
        return slots, report

    count = len(slots.pending)
    nothing = DecodeReport(
        tokens=jnp.zeros((count, block), jnp.int32),
        log_probabilities=jnp.zeros((count, block), jnp.float32),
        counts=jnp.zeros(count, jnp.int32),
        reasons=jnp.full(count, CONTINUES, jnp.int32),
        steps=jnp.zeros((), jnp.int32),
    )
    slots, report = jax.lax.while_loop(goes_on, step, (slots._replace(cache=cache.start), nothing))
    slots = slots._replace(cache=cache.end(slots.cache, jnp.maximum(first, 0), block))
    if rows is not None:
        put = functools.partial(jax.tree.map, lambda x, new: with_per_slot(x, rows, new))
        slots = Slots(slots.cache, *put(tuple(everyone[1:]), tuple(slots[1:])))
    return slots, report


class CompiledFunctions:
    """`append`, `fork`, `begin` and `decode`, compiled ahead of time once per static shape.

    The numbers of slots and positions must not change; see `compiled_functions`.
    """

    def __init__(self, form: SamplerForm, block: int):
        self._form, self._block, self._shardings = form, block, slot_shardings(form)
        self._compiled: dict[tuple, Any] = {}

    @property
    def count(self) -> int:
        """Number of compiled shapes."""
        return len(self._compiled)

    def empty(self, slots: int, context: int) -> Slots:
        """Creates slots on the devices."""
        key = "empty", slots, context
        if key not in self._compiled:
            create = jax.jit(functools.partial(empty_slots, self._form, slots, context), out_shardings=self._shardings)
            self._compiled[key] = create.lower().compile()
        return self._compiled[key]()

    def lower(self, name: str, window: int, *arguments) -> Lowered:
        """Traces a function for arrays, or for `jax.ShapeDtypeStruct`s with shardings; it donates the slots."""
        config, mesh = self._form.decoder, self._form.mesh
        function: Callable = begin
        outputs: Any = self._shardings
        donated = 0
        if name == "fork":
            function = functools.partial(fork, window)
        elif name == "append":
            donated, function = 1, functools.partial(append, config, window, mesh=mesh)
        elif name == "decode":
            shares, check_every = mesh.shape["data"] * mesh.shape["fsdp"], 1 if mesh.size == 1 else CHECK_EVERY
            function = functools.partial(decode, config, window, self._block, check_every=check_every, shares=shares)
            donated, outputs = 1, (self._shardings, replicated(mesh))
        return jax.jit(function, donate_argnums=donated, out_shardings=outputs).lower(*arguments)

    def __call__(self, name: str, window: int, *arguments) -> Any:
        """Calls a function, compiled for a window of the cache and the shapes of the arrays; `begin` reads no cache."""
        key = name, window, *(getattr(argument, "shape", ()) for argument in arguments)
        if key not in self._compiled:
            self._compiled[key] = self.lower(name, window, *arguments).compile()
        return self._compiled[key](*arguments)


@functools.lru_cache(maxsize=32)
def compiled_functions(form: SamplerForm, slots: int, context: int, block: int) -> CompiledFunctions:
    """Returns the compiled functions, which all samplers of these sizes share."""
    return CompiledFunctions(form, block)
