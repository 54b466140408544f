"""The host side of sampling: batches requests into the slots' compiled shapes, and collects what was sampled.

One device program serves a whole shape, so this file is about choosing shapes: how many rows, how many tokens and which
window of the cache a call computes. No choice changes a token.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from lcrag.errors import UserError, typed
from lcrag.policy import AnyMesh, DecoderConfig, TokenIds, Tokenizer, logical_sharding, make_mesh, replicated
from lcrag.policy.config import accelerator_of
from lcrag.sampling.choice import StopTable, text_until_stop
from lcrag.sampling.slots import CONTINUES, DecodeReport, LayersForm, SamplerForm, SlotParameters, compiled_functions

# --- Settings ---

FinishReason = Literal["stop", "eos", "length"]
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "eos", "length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How to continue one context.

    Attributes:
      stop: Strings that end the generation, wherever token boundaries fall.
      max_tokens: Maximum number of tokens; fewer if the context fills up first.
      temperature: Divides the logits; 0 is greedy.
      top_p: Nucleus mass (Holtzman et al., 2020); 1 samples the whole distribution.
      seed, episode: Select the random stream: a token's random number is a function of (seed, episode, position) only.
        From 0 to 2**32 - 1.
      unscaled_scores: Whether log-probabilities are those at temperature 1, and not at the sampling temperature.
    """

    stop: tuple[str, ...] = ()
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    episode: int = 0
    unscaled_scores: bool = False

    def __post_init__(self):
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: sample at least 1")
        if not (self.temperature >= 0 and 0 < self.top_p <= 1):
            raise UserError(
                f"temperature is {self.temperature} and top_p is {self.top_p}: set temperature to at least 0, and"
                " top_p above 0 and to at most 1"
            )


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A finished generation.

    Log-probabilities are those of the untruncated distribution at the sampling temperature, or at temperature 1 where
    the choice was greedy, and with `unscaled_scores`.
    """

    tokens: np.ndarray  # int32[n], as sampled; training uses exactly these
    log_probabilities: np.ndarray  # float32[n]
    text: str  # up to and including the stop string; the rest of the last token is dropped
    finish_reason: FinishReason  # "length": `max_tokens` reached or context full
    temperature: float | None = None  # of sampling; None: unknown


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Settings of a `SlotSampler`: the number and size of its slots, and the shapes that it compiles.

    Attributes:
      slots: Number of contexts held at once.
      context: Maximum length of a context, in tokens.
      block: Maximum number of tokens sampled per slot in one `decode`, which may run twice where fewer rows remain.
      min_finished_share: A block ends before its last token once this share of the slots that began it has finished;
        fewer are not worth the call that refills them.
      windows: Cache lengths to compile, in addition to `context`: a block reads the shortest that covers the contexts
        of the sampling slots and the block.
      decode_rows: Numbers of slots to compile `decode` for, in addition to all slots: a block computes the smallest
        that fits the sampling slots, and continues with fewer as slots finish. It copies their contexts first.
      append_rows: Numbers of slots to compile `append` for, over all devices; empty: 8, and all slots. Slots are
        split over them at the least cost. Memory for a chunk grows with rows x tokens x context.
      append_tokens: Chunk lengths to compile `append` for; texts are cut into them at the least cost, which is that of
        padding and of reading the parameters once more for each chunk.
      gather_parameters: Whether every device along the mesh axis "fsdp" holds all parameters. Otherwise each decode
        step gathers them, which takes longer than reading them; set it wherever they fit.
      layers: Whether the sampler keeps each layer's parameters and cache "apart" or "stacked"; see `SamplerForm`.
      merge_adapters: Whether LoRA adapters are merged into a copy of their kernels, which takes the memory of these
        kernels; False reads base and adapters in place.
    """

    slots: int = 64
    context: int = 512
    block: int = 32
    min_finished_share: float = 0.25
    windows: Sequence[int] = ()
    decode_rows: Sequence[int] = ()
    append_rows: Sequence[int] = ()
    append_tokens: Sequence[int] = (32, 128)
    gather_parameters: bool = False
    layers: LayersForm = "auto"
    merge_adapters: bool = True

    def __post_init__(self):
        for name in ("slots", "context", "block", "windows", "decode_rows", "append_rows", "append_tokens"):
            value = getattr(self, name)
            if name == "append_tokens" and not value:
                raise UserError("Sampler.append_tokens is empty: give one length or more")
            if min(value if isinstance(value, Sequence) else (value,), default=1) < 1:
                raise UserError(f"Sampler.{name} is {value}: set it to at least 1")

    def form(self, config: DecoderConfig, mesh: AnyMesh) -> SamplerForm:
        """Returns the form in which a sampler of these settings keeps a decoder's parameters and cache."""
        merges = self.merge_adapters and bool(config.lora)
        return SamplerForm(config, mesh, self.gather_parameters, self.layers, merges, max(self.append_tokens))

    @property
    def largest_append(self) -> tuple[int, int]:
        """The largest number of slots, and of tokens, of one `append`."""
        return min(self.slots, max(self.append_rows or (self.slots,))), max(self.append_tokens)


@dataclasses.dataclass
class SamplerStatistics:
    """Counters since the sampler was created."""

    sampled_tokens: int = 0  # by the policy
    appended_tokens: int = 0  # prefilled: the environment's, and contexts that gave up their slot
    append_positions: int = 0  # computed for that, padding included
    append_seconds: float = 0.0  # forks included, until the devices had finished
    decode_seconds: float = 0.0
    decode_steps: int = 0
    slot_steps: int = 0  # decode steps x computed slots: the largest possible number of sampled tokens
    compiled_shapes: int = 0  # compiled functions so far, those of earlier samplers of the same sizes included


# --- The sampler ---

CPU_TOKENS_PER_READ = 24.0  # 30 layers, 576 wide, in float32 on two cores: 29 ms a call and 1.3 ms a token


class SlotSampler:
    """Samples many contexts at once in a fixed number of device slots; contexts persist across turns.

    The tokenizer provides the bytes of tokens and the end-of-sequence ids. Without a mesh there is one device.
    """

    policy_version = 0  # how many rollouts its parameters have learned from

    def __init__(
        self,
        config: DecoderConfig,
        params,
        tokenizer: Tokenizer,
        settings: Sampler,
        mesh: Mesh | None = None,
    ):
        mesh = mesh or make_mesh(devices=jax.devices()[:1])
        slots, context = settings.slots, settings.context
        if context > config.max_positions:
            raise UserError(f"context={context} exceeds the {config.max_positions} positions of the model: lower it")
        self._shares = mesh.shape["data"] * mesh.shape["fsdp"]
        self._share = slots // self._shares
        if slots % self._shares:
            raise UserError(f"slots={slots} cannot be spread over the mesh {dict(mesh.shape)}: make it a multiple")
        self.slots, self.context, self.statistics = slots, context, SamplerStatistics()
        self._config, self._tokenizer, self._mesh = config, tokenizer, mesh
        self._block = settings.block
        self._windows = sorted({min(window, context) for window in settings.windows} | {context})
        self._append_rows = self._per_share(settings.append_rows or (8, slots))
        self._decode_rows = self._per_share([*settings.decode_rows, slots])
        self._append_tokens = sorted(set(settings.append_tokens))
        self._form = settings.form(config, mesh)
        self._compiled = compiled_functions(self._form, slots, context, settings.block)
        self._state = self._compiled.empty(slots, context)
        self._params = self._form.placed(params)
        config.check_vocabulary(len(tokenizer.token_bytes))
        # models often have a few more embedding rows than their tokenizer has tokens
        unused = config.vocabulary_size - len(tokenizer.token_bytes)
        self._stops, self._stop_sets_on_device = StopTable([*tokenizer.token_bytes, *[b""] * unused]), 0
        self._device_table: Array | None = None
        self._lengths = np.zeros(slots, np.int32)
        # of each running generation its request, and the tokens and log-probabilities of each block
        self._unfinished: dict[int, tuple[SamplingParameters, list[tuple[np.ndarray, np.ndarray]]]] = {}
        self._waiting: dict[int, SamplingParameters] = {}
        self._eos = self._put(np.asarray(tokenizer.eos_ids, np.int32))
        self._min_finished_share = settings.min_finished_share
        # Reading the parameters for a call of `append` takes as long as computing this number of tokens: a token needs
        # two operations for each parameter, which has two bytes.
        one = accelerator_of(mesh.devices.flat[0])
        self._tokens_per_call = one.flops_per_second / one.bytes_per_second if one else CPU_TOKENS_PER_READ

    def _per_share(self, rows: Iterable[int]) -> list[int]:
        return sorted({-(-min(count, self.slots) // self._shares) for count in rows})

    def _put(self, arrays, *axes: str):
        """Copies small control arrays from host to device, the only such transfer."""
        sharding = logical_sharding(self._mesh, *axes) if axes else replicated(self._mesh)
        return jax.device_put(arrays, sharding)

    @property
    def running(self) -> int:
        return len(self._unfinished) + len(self._waiting)

    def length(self, slot: int) -> int:
        return int(self._lengths[slot])

    def set_params(self, params, policy_version: int) -> None:
        """Replaces the parameters and drops all contexts, whose keys and values the old parameters computed.

        `policy_version` is that of the learner which the parameters come from (`Learner.policy_version`), or 0.
        """
        self.drop_params()
        self.policy_version = policy_version
        self._params = self._form.placed(params)
        self.free(range(self.slots))

    def drop_params(self) -> None:
        """Frees the memory of the parameters; `set_params` must follow before anything else is sampled."""
        self._params = None

    def free(self, slots: Iterable[int]) -> None:
        """Drops the contexts of some slots and their running generations."""
        for slot in slots:
            self._lengths[slot] = 0
            self._unfinished.pop(slot, None)
            self._waiting.pop(slot, None)

    def wait(self) -> None:
        jax.block_until_ready(self._state)

    def append(self, entries: Mapping[int, TokenIds], dropping: Collection[int] = ()) -> None:
        """Appends environment tokens to some contexts; the new lengths must fit the context.

        Of the slots in `dropping`, which are among the entries, the last token, which they sampled, is dropped first.
        """
        started = time.monotonic()
        self._lengths[list(dropping)] -= 1
        pieces: dict[int, list[TokenIds]] = {}
        together = min(max(map(len, self._by_share(entries))), self._append_rows[-1])  # slots that share a call
        for slot, ids in entries.items():
            ends = itertools.accumulate(
                _split(len(ids), tuple(self._append_tokens), self._tokens_per_call / max(1, together))
            )
            pieces[slot] = [ids[begin:end] for begin, end in itertools.pairwise([0, *ends])]
        for index in range(max(map(len, pieces.values()), default=0)):
            now = {slot: chunks[index] for slot, chunks in pieces.items() if index < len(chunks)}
            for size in self._append_tokens:  # long and short pieces separately, to keep padding small
                slots = [slot for slot, ids in now.items() if _bucket(self._append_tokens, len(ids)) == size]
                shares = self._by_share(slots)
                first = 0
                for rows in _split(max(map(len, shares)), tuple(self._append_rows), self._tokens_per_call / size):
                    part = {slot: now[slot] for share in shares for slot in share[first : first + rows]}
                    self._append(part, dropping if index == 0 else ())
                    first += rows
        self.statistics.append_seconds += time.monotonic() - started

    def _by_share(self, slots: Iterable[int]) -> list[list[int]]:
        shares: list[list[int]] = [[] for _ in range(self._shares)]
        for slot in slots:
            shares[slot // self._share].append(slot)
        return shares

    def _append(self, entries: Mapping[int, TokenIds], dropping: Collection[int] = ()) -> None:
        shares = self._by_share(entries)
        rows = _bucket(self._append_rows, max(map(len, shares)))
        padding = self._padding(rows, _bucket(self._append_tokens, max(map(len, entries.values()))))
        numbers, lengths, tokens, counts, dropped = padding
        for share, slots in enumerate(shares):
            for row, slot in enumerate(slots):
                ids = entries[slot]
                numbers[share, row], lengths[share, row] = slot % self._share, self._lengths[slot]
                tokens[share, row, : len(ids)], counts[share, row] = ids, len(ids)
                dropped[share, row] = slot in dropping
                self._lengths[slot] += len(ids)
                self.statistics.appended_tokens += len(ids)
        self.statistics.append_positions += tokens.size
        window = _bucket(self._windows, int(self._lengths[list(entries)].max()))
        with jax.transfer_guard("disallow"):
            self._state = self._compiled("append", window, self._params, self._state, *self._put(padding, "slots"))

    def _padding(self, rows: int, time: int) -> tuple[np.ndarray, ...]:
        """Returns the arrays of an append that appends nothing; see `lcrag.sampling.slots.append`."""
        shape = self._shares, rows
        numbers, lengths = np.full(shape, self._share, np.int32), np.zeros(shape, np.int32)
        return numbers, lengths, np.zeros((*shape, time), np.int32), np.ones(shape, np.int32), np.zeros(shape, bool)

    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copies one slot's context to free slots, so that a shared prompt is prefilled once."""
        numbers = np.full(self.slots, self.slots, np.int32)
        numbers[: len(targets)] = targets
        self._lengths[list(targets)] = self._lengths[source]
        window = _bucket(self._windows, self.length(source))
        with jax.transfer_guard("disallow"):
            arrays = self._put(np.int32(source)), self._put(numbers)
            self._state = self._compiled("fork", window, self._state, *arrays)

    def begin(self, requests: Mapping[int, SamplingParameters]) -> None:
        """Starts sampling in some slots with the next `decode`."""
        self._waiting.update(requests)

    def decode(self) -> dict[int, Sampled]:
        """Samples one block of tokens in every running slot; returns the generations that finished in it."""
        if not self.running:
            return {}
        started = time.monotonic()
        self.wait()  # for what was appended
        self.statistics.append_seconds += (appended := time.monotonic()) - started
        finished: dict[int, Sampled] = {}
        with jax.transfer_guard("disallow"):
            if self._waiting:
                starting, parameters = np.zeros(self.slots, bool), SlotParameters.empty(self.slots)
                for slot, request in self._waiting.items():
                    starting[slot] = True
                    limit = min(self.length(slot) + request.max_tokens, self.context)
                    others = (getattr(request, name) for name in parameters._fields[2:])
                    values = self._stops.start(request.stop), limit, *others
                    for column, value in zip(parameters, values, strict=True):
                        column[slot] = value
                    self._unfinished[slot] = request, []
                self._waiting = {}
                self._state = self._compiled("begin", 0, self._state, *self._put((starting, parameters), "slots"))
            # The block ends early once enough slots wait: refilling them one by one would append mostly padding.
            min_finished = max(1, round(self._min_finished_share * len(self._unfinished)))
            last_step = self.statistics.decode_steps + self._block
            while self._unfinished and len(finished) < min_finished and self.statistics.decode_steps < last_step:
                finished |= self._decode(min_finished - len(finished))
        self.statistics.decode_seconds += time.monotonic() - appended
        return finished

    def _decode(self, min_finished: int) -> dict[int, Sampled]:
        """Decodes until `min_finished` slots have finished, or until the others fit into fewer rows."""
        longest = int(self._lengths[list(self._unfinished)].max())
        window = _bucket(self._windows, min(longest + self._block, self.context))
        # The sampling slots, numbered within their share and padded; None: all slots.
        shares = self._by_share(self._unfinished)
        size = _bucket(self._decode_rows, max(map(len, shares)))
        rows = self._no_rows(size, window)
        if rows is not None:
            for row, slots in zip(rows, shares, strict=True):
                row[: len(slots)] = np.array(slots, np.int32) % self._share
        fewer = self._shares * max((count for count in self._decode_rows if count < size), default=0)
        min_finished = min(min_finished, max(1, len(self._unfinished) - fewer))
        self._state, on_device = self._compiled("decode", window, *self._decode_arguments(rows, min_finished))
        report: DecodeReport = jax.device_get(on_device)

        finished, row_of = {}, {slot: slot for slot in range(self.slots)}
        if rows is not None:
            numbers = rows + self._share * np.arange(self._shares)[:, None]
            row_of = {int(slot): row for row, slot in enumerate(numbers.flat) if rows.flat[row] < self._share}
        for slot in sorted(self._unfinished):
            row, (request, blocks) = row_of[slot], self._unfinished[slot]
            count = int(report.counts[row])
            blocks.append((report.tokens[row, :count], report.log_probabilities[row, :count]))
            self._lengths[slot] += count
            self.statistics.sampled_tokens += count
            if report.reasons[row] != CONTINUES:
                del self._unfinished[slot]
                reason = FINISH_REASONS[int(report.reasons[row]) - 1]
                tokens, log_probabilities = map(np.concatenate, zip(*blocks, strict=True))
                content = self._tokenizer.decode_bytes(tokens[:-1] if reason == "eos" else tokens)
                text = text_until_stop(content, request.stop if reason == "stop" else ())
                finished[slot] = Sampled(tokens, log_probabilities, text, reason, request.temperature)
        self.statistics.decode_steps += int(report.steps)
        self.statistics.slot_steps += int(report.steps) * len(report.counts)
        self.statistics.compiled_shapes = self._compiled.count
        return finished

    def _no_rows(self, size: int, window: int) -> np.ndarray | None:
        """Returns rows of padding for a block of `size` slots of each share; None: it computes all slots in place."""
        # On several devices, writing back into contexts longer than the window needs the rows of each share.
        if size == self._share and (self._shares == 1 or window == self.context):
            return None
        return np.full((self._shares, size), self._share, np.int32)

    def _decode_arguments(self, rows: np.ndarray | None, min_finished: int) -> tuple:
        if self._device_table is None or self._stop_sets_on_device != self._stops.sets:
            self._device_table, self._stop_sets_on_device = self._put(self._stops.table), self._stops.sets
        arguments = self._params, self._state, self._device_table, self._eos, self._put(np.int32(min_finished))
        return arguments if rows is None else (*arguments, self._put(rows, "slots"))

    def warm_up(self, stops: Iterable[tuple[str, ...]] = ()) -> int:
        """Compiles every shape that a run can need, several at once; returns their number."""
        for stop in stops:
            self._stops.start(stop)
        starting = np.zeros(self.slots, bool), SlotParameters.empty(self.slots)
        calls: list[tuple] = [("begin", 0, self._state, *self._put(starting, "slots"))]
        for window in self._windows:
            targets = self._put(np.zeros(self.slots, np.int32))
            calls.append(("fork", window, self._state, self._put(np.int32(0)), targets))
            for size in self._decode_rows:
                calls.append(("decode", window, *self._decode_arguments(self._no_rows(size, window), 1)))
            fitting = sorted({_bucket(self._append_tokens, min(tokens, window)) for tokens in self._append_tokens})
            for rows, tokens in itertools.product(self._append_rows, fitting):
                arrays = self._put(self._padding(rows, tokens), "slots")
                calls.append(("append", window, self._params, self._state, *arrays))
        self._compiled.compile(calls)
        self.statistics.compiled_shapes = self._compiled.count
        return self._compiled.count


def _bucket(sizes: Sequence[int], needed: int) -> int:
    return next(size for size in sizes if size >= needed)


def _split(count: int, sizes: tuple[int, ...], part_cost: float) -> tuple[int, ...]:
    """Splits a number of rows or tokens into compiled sizes, the largest first, at the least cost.

    The cost is the sum of the parts, and `part_cost` for each of them, in rows or tokens.
    """
    firsts, parts = _first_parts(sizes, part_cost), list[int]()
    while count > 0:
        parts.append(firsts[min(count, sizes[-1])])
        count -= parts[-1]
    return tuple(sorted(parts, reverse=True))


@functools.cache
def _first_parts(sizes: tuple[int, ...], part_cost: float) -> list[int]:
    """Returns a part of the cheapest split of each number up to the largest size."""
    sums, firsts = [(0, 0)], [0]  # sum and number of the parts
    for count in range(1, sizes[-1] + 1):
        enough = next(size for size in sizes if size >= count)
        left = {size: sums[max(0, count - size)] for size in sizes if size <= enough}
        totals = {size: (size + rest, 1 + parts) for size, (rest, parts) in left.items()}
        firsts.append(min(totals, key=lambda size: (totals[size][0] + totals[size][1] * part_cost, totals[size][1])))
        sums.append(totals[firsts[-1]])
    return firsts


# --- Many contexts ---

CONTEXT_STEP = 64  # tokens
SMALLEST_WINDOWS = (96, 128)  # the others are these times powers of two; only those that are reached are compiled


def generate(
    config: DecoderConfig,
    params,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    stop: Sequence[str] = (),
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    slots: int = 64,
) -> list[Sampled]:
    """Continues every prompt, a text that may contain control tokens or token ids; results are in their order.

    For stop strings and what follows see `SamplingParameters`, where `episode` is the index of the prompt. At most
    `slots` prompts are sampled at once. Calls of similar sizes share their compiled functions: the number of slots is
    rounded up to a power of two, the context to a multiple of 64.
    """
    if not prompts:
        return []
    ids, beginning = [], list(tokenizer.beginning_ids)
    for prompt in prompts:
        tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        begun = not isinstance(prompt, str) or tokens[: len(beginning)] == beginning  # the text may contain them
        ids.append(tokens if begun else beginning + tokens)
    needed = max(map(len, ids)) + max_tokens
    context = min(-(-needed // CONTEXT_STEP) * CONTEXT_STEP, config.max_positions)
    windows = [size << doublings for doublings in range(16) for size in SMALLEST_WINDOWS if size << doublings < context]
    settings = Sampler(slots=min(slots, 1 << (len(ids) - 1).bit_length()), context=context, windows=windows)
    requests = [
        SamplingParameters(
            stop=tuple(stop), max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, episode=index
        )
        for index in range(len(ids))
    ]
    sampler = SlotSampler(config, params, tokenizer, settings)
    return continue_contexts(sampler, list(zip(ids, requests, strict=True)))


def continue_contexts(sampler: SlotSampler, contexts: Sequence[tuple[TokenIds, SamplingParameters]]) -> list[Sampled]:
    """Samples a continuation of each context; a slot that finishes takes the next context at once.

    The slots of the sampler are all free, before and after. Contexts are tokens, at least one, and how to continue
    them; the results are in their order.
    """
    lengths = [len(tokens) for tokens, _ in contexts]
    if 0 in lengths:
        raise UserError(f"prompt {lengths.index(0)} is empty: give at least one token to continue from")
    longest = max(lengths, default=0)
    if longest >= sampler.context:
        raise UserError(f"a prompt of {longest} tokens leaves no room in a context of {sampler.context}: raise it")
    results: dict[int, Sampled] = {}
    owners: dict[int, int] = {}
    queue = list(range(len(contexts)))[::-1]
    while queue or owners:
        admitted = {slot: queue.pop() for slot in range(sampler.slots) if queue and slot not in owners}
        owners |= admitted
        if admitted:
            sampler.append({slot: contexts[index][0] for slot, index in admitted.items()})
            sampler.begin({slot: contexts[index][1] for slot, index in admitted.items()})
        for slot, sampled in sampler.decode().items():
            results[owners.pop(slot)] = sampled
            sampler.free([slot])
    return [results[index] for index in range(len(contexts))]
