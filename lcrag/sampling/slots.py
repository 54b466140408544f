"""The slots: one pytree of fixed shape, the pure functions that change it, and their compilation.

Invariant: a slot's last token is `pending`; the cache holds the keys and values of all tokens before it. Appending and
decoding both start by feeding the pending token. Positions beyond a slot's length hold arbitrary values, which are
overwritten before anything attends to them.

Slots are divided into equal consecutive shares, one for each group of devices that divides them. `rows` numbers slots
within each share; the size of a share marks padding.
"""

import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt

from lcrag.policy import (
    AnyMesh,
    DecoderConfig,
    KeyValueCache,
    compute_parameters,
    empty_cache,
    forward,
    gathered,
    logical_sharding,
    merge_lora,
    param_shardings,
    replicated,
    unembed,
)
from lcrag.policy.attention import ChunkCache, RowsCache, by_share, has_chunk_kernel
from lcrag.policy.parameters import moved
from lcrag.sampling.choice import FOUND, sample_token, streams, uniforms

# --- The form of parameters and cache ---

LayersForm: TypeAlias = Literal["auto", "stacked", "apart"]
Rows: TypeAlias = Int[Array, "shares rows"] | None  # None: all slots
Cache: TypeAlias = KeyValueCache | tuple[KeyValueCache, ...]  # of all layers, or each of one
TILE = 16  # places: the rows of a TPU's tile of 16-bit numbers


@dataclasses.dataclass(frozen=True)
class SamplerForm:
    """The form of a sampler's parameters and cache.

    Each layer has separate arrays ("apart") or slices of stacked arrays, for its parameters and its cache. XLA for CPUs
    and GPUs copies such a slice before every use, XLA for TPUs reads it in place; "auto" follows the platform. Layers
    apart are a copy of the policy's, which take their memory once more. Only they can have caches of different lengths:
    those of Gemma's sliding windows are no longer than they must be, and "auto" means "apart" for it everywhere.
    """

    policy: DecoderConfig  # in training
    mesh: AnyMesh
    gather: bool = False  # replicates parameters along the mesh axis "fsdp"
    layers: LayersForm = "auto"
    merge: bool = False  # merges adapters into the kernels: saves small products, and costs a copy of the kernels
    longest_append: int = 1  # tokens, for which the caches of sliding windows have room

    @property
    def apart(self) -> bool:
        """Whether each layer has separate arrays."""
        if self.layers == "auto":
            return self.decoder.sliding_window is not None or self.platform not in (None, "tpu")
        return self.layers == "apart"

    @property
    def transposes_keys(self) -> bool:
        """Whether a block of decoding begins with copies of the caches in the form that CPUs prefer."""
        return self.apart and self.platform == "cpu"

    @property
    def platform(self) -> str | None:
        """The platform of the devices; an abstract mesh has none."""
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else None

    @functools.cached_property
    def decoder(self) -> DecoderConfig:
        """The decoder that samples, without adapters where they are merged."""
        return dataclasses.replace(self.policy, lora=None) if self.merge else self.policy

    @property
    def parameter_shardings(self) -> Any:
        shardings = param_shardings(self.decoder, self.mesh)
        shardings = gathered(shardings) if self.gather else shardings
        without_first = lambda sharding, layer: NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))  # noqa: E731
        return self._separated(shardings, without_first) if self.apart else shardings

    def empty_cache(self, slots: int, positions: int) -> Cache:
        """Returns a cache of zeros; see `lcrag.policy.empty_cache`."""
        config = self.decoder
        if not self.apart:
            return empty_cache(config, slots, positions, self.mesh)
        # Each token of an append sees its whole window, when all others have been stored.
        window = -(-((config.sliding_window or 0) + self.longest_append - 1) // TILE) * TILE

        def of_layer(number: int) -> KeyValueCache:
            wraps = config.is_local(number) and window < positions
            stack = empty_cache(config, slots, window if wraps else positions, self.mesh, layers=1)
            return KeyValueCache(stack.keys[0], stack.values[0], wraps)

        return tuple(map(of_layer, range(config.layers)))

    def parameters(self, params: Any) -> Any:
        """Converts parameters to this form, without copying arrays that have it; also under `jax.eval_shape`."""
        merged = merge_lora(self.policy, params, self.policy.dtype)[1] if self.merge else params
        computed = compute_parameters(self.decoder, merged)
        return self._separated(computed, lambda stack, layer: stack[layer]) if self.apart else computed

    def placed(self, params: Any) -> Any:
        """Converts parameters and places them on the mesh; arrays already in place are not copied."""
        given = moved(params, param_shardings(self.policy, self.mesh))
        if self.apart:
            return _separation(self)(given)
        return moved(self.parameters(given), self.parameter_shardings)

    def own_leaves(self, given: Any, own: Any) -> list[Any]:
        """Returns the leaves of `own` that are not shared with `given`: the additional memory of this form."""
        theirs, lora = traverse_util.flatten_dict(given), self.policy.lora if self.merge else None
        leaves = jax.tree.leaves(own["layers"]) if self.apart else []  # all layers are copies
        shared = {name: tree for name, tree in own.items() if not (self.apart and name == "layers")}
        for path, leaf in traverse_util.flatten_dict(shared).items():
            is_merged = lora is not None and "/".join(path[-3:-1]) in lora.targets
            if is_merged or theirs.get(path) != leaf:
                leaves.append(leaf)
        return leaves

    def _separated(self, tree: Any, slice_of: Any) -> Any:
        parts = [
            jax.tree.map(functools.partial(slice_of, layer=layer), tree["layers"])
            for layer in range(self.policy.layers)
        ]
        return {**tree, "layers": parts}


@functools.lru_cache(maxsize=32)
def _separation(form: SamplerForm) -> Callable[[Any], Any]:
    """Casts and separates in one program, which samplers of a form share, without a copy of the whole stack."""
    return jax.jit(form.parameters, out_shardings=form.parameter_shardings)


# --- The state of the slots, and its functions ---

CONTINUES, STOPPED, ENDED, FULL = range(4)  # why a slot left a block; the last three in the order of FINISH_REASONS
CHECK_EVERY = 4  # on several devices, decode steps between checks whether enough slots have finished


class SlotParameters(NamedTuple):
    """The `SamplingParameters` of all slots as arrays."""

    stop: UInt[Array, "slots"]  # state of the stop automaton, which advances with every sampled token
    limit: Int[Array, "slots"]  # context length at which sampling ends, from `max_tokens`
    temperature: Float[Array, "slots"]
    top_p: Float[Array, "slots"]
    seed: UInt[Array, "slots"]
    episode: UInt[Array, "slots"]
    unscaled_scores: Bool[Array, "slots"]

    @classmethod
    def empty(cls, slots: int) -> "SlotParameters":
        dtypes = (np.uint8, np.int32, np.float32, np.float32, np.uint32, np.uint32, np.bool_)
        return cls(*(np.zeros(slots, dtype) for dtype in dtypes))


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
    """Spreads slots over the mesh's batch axes and key-value heads over its tensor axis; the cache has one sharding."""
    row, layers = logical_sharding(form.mesh, "slots"), () if form.apart else ("layers",)
    cache = logical_sharding(form.mesh, *layers, "slots", "heads", None, None)
    return Slots(cache, row, row, row, SlotParameters(*[row] * len(SlotParameters._fields)))


def append(
    config: DecoderConfig,
    window: int,
    params,
    slots: Slots,
    rows: Int[Array, "shares rows"],
    lengths: Int[Array, "shares rows"],
    tokens: Int[Array, "shares rows chunk"],
    counts: Int[Array, "shares rows"],
    dropping: Bool[Array, "shares rows"],
    mesh: Mesh | None = None,
) -> Slots:
    """Appends environment tokens to the contexts of some slots (chunked prefill) and stops these slots.

    Slots are divided into equal consecutive shares, and each share extends its own slots, so on a mesh no cache leaves
    its device.

    Args:
      window: Number of cache positions read; every row's new length must fit.
      rows: The slots to extend, counted from the first of their share; the size of a share marks padding.
      lengths: Their current lengths, without a token that is dropped; 0 starts a new context.
      tokens: New tokens, right-padded.
      dropping: Rows whose pending token, which is not in the cache, is no longer part of the context.
      mesh: The devices, for kernels that XLA does not partition.
    """
    pending = per_slot(slots.pending, rows)
    new, present = tokens.reshape(-1, tokens.shape[-1]), lengths.reshape(-1)
    # A context that goes on is fed its pending token first, and its last new token becomes the pending one.
    shifted = jnp.concatenate([pending[:, None], new[:, :-1]], axis=1)
    complete = (present == 0) | dropping.reshape(-1)  # the cache holds the whole context
    fed = jnp.where(complete[:, None], new, shifted)
    last = jnp.take_along_axis(tokens, counts[..., None] - 1, axis=2).reshape(-1)

    first, chunk = present - ~complete, fed.shape[1]
    positions = first[:, None] + jnp.arange(chunk)
    if not isinstance(slots.cache, KeyValueCache):
        parts = tuple(RowsCache(layer.keys, layer.values, rows, window, layer.wraps) for layer in slots.cache)
        _, parts = forward(config, params, fed, positions, parts)
        cache: Cache = tuple(KeyValueCache(layer.keys, layer.values, layer.wraps) for layer in parts)
    elif mesh is not None and has_chunk_kernel(config, mesh, chunk, window):
        held = windows_of(slots.cache, rows, window)
        assert isinstance(held, KeyValueCache)
        empty = jnp.zeros((*held.keys.shape[:3], chunk, held.keys.shape[4]), held.keys.dtype)
        _, grown = forward(config, params, fed, positions, ChunkCache(held.keys, held.values, empty, empty, mesh))
        starts, _ = starts_within(window, first, chunk, wraps=False)
        columns = zip((slots.cache.keys, slots.cache.values), grown.columns(first, starts), strict=True)
        cache = KeyValueCache(*(with_columns(column, rows, starts, new) for column, new in columns))
    else:
        _, seen = forward(config, params, fed, positions, windows_of(slots.cache, rows, window))
        cache = with_new_columns(slots.cache, seen, rows, first, chunk)
    return slots._replace(
        cache=cache,
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
    transposes_keys: bool = False,
) -> tuple[Slots, DecodeReport]:
    """Samples up to `block` tokens in every running slot, one at each step.

    Ends early once `min_finished` slots have finished in this block or none is running.

    Args:
      window: Number of cache positions read.
      rows: The slots to compute, as in `append`; must include all running ones, and are the rows of the report. None:
        all slots.
      check_every: Steps between checks for the early end; the count is a collective where there are several devices.
      shares: Equal consecutive parts of the slots, one for each group of devices that divides them.
      transposes_keys: See `SamplerForm`.
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
    # The loop carries only the places that the longest running slot needs.
    carried = windows_of(everyone.cache, rows, window, transposes_keys)

    def goes_on(carry: tuple[Slots, DecodeReport]) -> Bool[Array, ""]:
        slots, report = carry
        enough = (jnp.sum(report.reasons != CONTINUES) >= min_finished) | ~jnp.any(slots.running)
        return (report.steps < block) & ~(enough & (report.steps % check_every == 0))

    def step(carry: tuple[Slots, DecodeReport]) -> tuple[Slots, DecodeReport]:
        slots, report = carry
        running, parameters = slots.running, slots.parameters
        # an empty slot must attend to something, or its softmax is 0 / 0
        places = jnp.maximum(slots.lengths - 1, 0)
        hidden, fed = forward(config, params, slots.pending[:, None], places[:, None], slots.cache)
        top_ps = jnp.where(running, parameters.top_p, 1.0)  # one idle slot below 1 would cost all of them the nucleus
        scaling = parameters.temperature, top_ps, parameters.unscaled_scores
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
    slots, report = jax.lax.while_loop(goes_on, step, (slots._replace(cache=carried), nothing))
    whole = rows is None and jax.tree.map(jnp.shape, carried) == jax.tree.map(jnp.shape, everyone.cache)
    if not whole:  # else the loop has updated it in place
        written = jnp.tile(jnp.arange(count // shares), (shares, 1)) if rows is None else rows
        cache = with_new_columns(everyone.cache, slots.cache, written, jnp.maximum(first, 0), block)
        slots = slots._replace(cache=cache)
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
            settings = {"check_every": check_every, "shares": shares, "transposes_keys": self._form.transposes_keys}
            function = functools.partial(decode, config, window, self._block, **settings)
            donated, outputs = 1, (self._shardings, replicated(mesh))
        return jax.jit(function, donate_argnums=donated, out_shardings=outputs).lower(*arguments)

    def __call__(self, name: str, window: int, *arguments) -> Any:
        """Calls a function, compiled for a window of the cache and the shapes of the arrays; `begin` reads no cache."""
        return self._executable(name, window, *arguments)(*arguments)

    def compile(self, calls: Sequence[tuple]) -> None:
        """Compiles functions for the arguments of calls, which are not made, on all of the host's processors.

        On GPUs one after the other, because compiling for them times kernels on the device.
        """
        on_gpu = self._form.platform == "gpu"
        with concurrent.futures.ThreadPoolExecutor(1 if on_gpu else os.cpu_count()) as pool:
            list(pool.map(lambda call: self._executable(*call), calls))

    def _executable(self, name: str, window: int, *arguments) -> Callable:
        key = name, window, *(getattr(argument, "shape", ()) for argument in arguments)
        if key not in self._compiled:
            self._compiled[key] = self.lower(name, window, *arguments).compile()
        return self._compiled[key]


@functools.lru_cache(maxsize=32)
def compiled_functions(form: SamplerForm, slots: int, context: int, block: int) -> CompiledFunctions:
    """Returns the compiled functions, which all samplers of these sizes share."""
    return CompiledFunctions(form, block)


# --- Parts of the caches ---


def per_slot(x: Shaped[Array, "slots *rest"], rows: Int[Array, "shares rows"]) -> Shaped[Array, "chosen *rest"]:
    """Selects the slots' entries, in order."""
    return by_share(lambda mine, rows: mine[rows], x, rows).reshape(-1, *x.shape[1:])


def with_per_slot(
    x: Shaped[Array, "slots *rest"], rows: Int[Array, "shares rows"], new: Shaped[Array, "chosen *rest"]
) -> Shaped[Array, "slots *rest"]:
    """The inverse of `per_slot`: writes the slots' entries."""
    parts = new.reshape(*rows.shape, *x.shape[1:])
    put = by_share(lambda mine, rows, new: mine.at[rows].set(new, mode="drop"), x, rows, parts)
    return put.reshape(x.shape)


def by_layer(function: Callable[..., KeyValueCache], *caches: Cache) -> Cache:
    """Applies a function to caches of all layers or, where layers are apart, to those of each."""
    return jax.tree.map(function, *caches, is_leaf=lambda node: isinstance(node, KeyValueCache))


def windows_of(cache: Cache, rows: Rows, window: int, transposed: bool = False) -> Cache:
    """Copies the first places of the slots in `rows`, or of all slots if `rows` is None; see `KeyValueCache`."""

    def taken(x: Float[Array, "*layers slots heads places width"]) -> Float[Array, "*layers chosen heads window width"]:
        if rows is None:
            return x[..., :window, :]
        *layers, _, heads, places, width = x.shape
        axis = len(layers)

        def of_share(mine: Array, rows: Array) -> Array:
            return mine.at[..., rows, :, :window, :].get(mode="clip")  # padding reads some slot, without a check

        shared = x.reshape(*layers, rows.shape[0], -1, *x.shape[-3:])
        chosen = jax.vmap(of_share, in_axes=(axis, 0), out_axes=axis)(shared, rows)
        return chosen.reshape(*layers, -1, heads, min(window, places), width)

    def selected(cache: KeyValueCache) -> KeyValueCache:
        keys, values = taken(cache.keys), taken(cache.values)
        # A window that is shorter than the cache holds all of the slots that are computed: none has wrapped around.
        wraps = cache.wraps and window >= cache.keys.shape[-2]
        return KeyValueCache(keys.swapaxes(-2, -1) if transposed else keys, values, wraps, transposed)

    return by_layer(selected, cache)


def with_columns(
    x: Float[Array, "*layers slots heads positions width"],
    rows: Int[Array, "shares rows"],
    starts: Int[Array, "chosen"],
    new: Float[Array, "*layers chosen heads count width"],
) -> Float[Array, "*layers slots heads positions width"]:
    """Writes `new` into some slots in place, into the positions from each slot's start on."""
    if x.ndim == 4:
        return with_columns(x[None], rows, starts, new[None])[0]
    shared = x.reshape(x.shape[0], rows.shape[0], -1, *x.shape[2:])
    parts = new.reshape(x.shape[0], *rows.shape, *new.shape[2:])
    numbers = jax.lax.ScatterDimensionNumbers((0, 2, 3, 4), (1,), (1, 3))

    def put_rows(mine, rows, starts, new):
        places = jnp.stack([rows, starts], axis=-1)
        return jax.lax.scatter(mine, places, new, numbers, mode="drop")

    return jax.vmap(put_rows, (1, 0, 0, 1), 1)(shared, rows, starts.reshape(rows.shape), parts).reshape(x.shape)


def with_new_columns(
    cache: Cache, seen: Cache, rows: Int[Array, "shares rows"], first: Int[Array, "chosen"], count: int
) -> Cache:
    """Writes the new positions in the windows of some slots back into the cache of all slots.

    The windows `seen` differ from `cache` only in the `count` positions from each row's `first` on.
    """

    def written(cache: KeyValueCache, seen: KeyValueCache) -> KeyValueCache:
        starts, places = starts_within(seen.values.shape[-2], first, count, seen.wraps)

        def columns(new: Float[Array, "*layers chosen heads _ _"], axis: int = -2):
            if new.ndim > 4:
                return jax.vmap(columns)(new)
            return jax.vmap(lambda x, start: jax.lax.dynamic_slice_in_dim(x, start, places, axis))(new, starts)

        keys = columns(seen.keys, axis=-1).swapaxes(2, 3) if seen.transposed else columns(seen.keys)
        values = columns(seen.values)
        return cache.replace(
            keys=with_columns(cache.keys, rows, starts, keys), values=with_columns(cache.values, rows, starts, values)
        )

    return by_layer(written, cache, seen)


def starts_within(
    window: int, first: Int[Array, "chosen"], count: int, wraps: bool
) -> tuple[Int[Array, "chosen"], int]:
    """Returns starts and a count of places within the window that include the `count` positions from `first` on."""
    count = window if wraps else min(count, window)
    return jnp.minimum(first, window - count), count
