"""The host's side of the slots: batches requests into the compiled shapes and keeps what was sampled."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from lcrag.errors import UserError
from lcrag.policy import (
    DecoderConfig,
    Tokenizer,
    compute_parameters,
    gathered,
    logical_sharding,
    make_mesh,
    param_shardings,
    replicated,
)
from lcrag.policy.tokenizer import TokenIds
from lcrag.sampling.generation import FINISH_REASONS, Generation, Sampled
from lcrag.sampling.programs import CompiledFunctions, slot_shardings
from lcrag.sampling.slots import CONTINUES, Begin, Report, empty_slots
from lcrag.sampling.stop import StopTable, text_until_stop


@dataclasses.dataclass
class SamplerStatistics:
    """Counters since the sampler was made.

    Attributes:
      sampled_tokens: Tokens that the policy sampled.
      appended_tokens: Environment tokens that were prefilled.
      decode_steps: Steps of the decode loop.
      slot_steps: Steps times slots: what the device could have sampled.
      compiled_shapes: Programs compiled so far.
    """

    sampled_tokens: int = 0
    appended_tokens: int = 0
    decode_steps: int = 0
    slot_steps: int = 0
    compiled_shapes: int = 0

    @property
    def occupancy(self) -> float:
        """Share of slot-steps that sampled a token."""
        return self.sampled_tokens / max(1, self.slot_steps)


@dataclasses.dataclass
class _Growing:
    """A generation under way."""

    request: Generation
    tokens: list[np.ndarray] = dataclasses.field(default_factory=list)
    log_probabilities: list[np.ndarray] = dataclasses.field(default_factory=list)


class Sampler:
    """Many contexts at once over a fixed number of device slots, each kept across turns.

    Args:
      config: The decoder.
      params: Its parameters.
      tokenizer: Gives the bytes of tokens and the end-of-sequence ids.
      slots: Contexts held at once.
      context: Longest context, in tokens.
      block: Most tokens sampled between two looks by the host.
      wanted: Leave a block early once this share of the slots has finished in it.
      windows: Cache lengths that are compiled; the context itself is always one.
      append_rows: Row counts that are compiled for `append`, over all devices, each of which extends its own slots;
        empty: 8, and all slots at once. Memory for a chunk grows with rows x tokens x context.
      append_tokens: Chunk lengths that are compiled for `append`.
      mesh: Devices; one device if None.
      gather_parameters: Hold the parameters whole along the mesh axis "fsdp". Else each step of decoding gathers them
        anew, which takes longer than reading them; set it wherever they fit.

    Raises:
      UserError: no slots, or an impossible size.
    """

    def __init__(
        self,
        config: DecoderConfig,
        params,
        tokenizer: Tokenizer,
        *,
        slots: int = 64,
        context: int = 512,
        block: int = 32,
        wanted: float = 0.25,
        windows: Sequence[int] = (),
        append_rows: Sequence[int] = (),
        append_tokens: Sequence[int] = (32, 128),
        mesh: Mesh | None = None,
        gather_parameters: bool = False,
    ):
        if slots < 1 or block < 1 or context < 2:
            raise UserError(
                f"a sampler with slots={slots}, block={block}, context={context} cannot run: all must be positive"
            )
        if context > config.max_positions:
            raise UserError(
                f"context={context} exceeds the {config.max_positions} positions that the model was made for"
            )
        mesh = mesh or make_mesh(devices=jax.devices()[:1])
        self._shares = mesh.shape["data"] * mesh.shape["fsdp"]
        self._share = slots // self._shares
        if slots % self._shares:
            raise UserError(f"slots={slots} cannot be spread over the mesh {dict(mesh.shape)}: make it a multiple")
        self.slots, self.context = slots, context
        self._config, self._tokenizer, self._mesh, self._block = config, tokenizer, mesh, block
        self._gather_parameters = gather_parameters
        self._wanted = max(1, round(wanted * slots))
        self._windows = sorted({min(each, context) for each in windows} | {context})
        self._append_rows = sorted({-(-min(each, slots) // self._shares) for each in append_rows or (8, slots)})
        self._append_tokens = sorted(set(append_tokens))
        self._programs = CompiledFunctions(config, mesh, block)
        create = functools.partial(empty_slots, config, slots, context, mesh)
        self._state = jax.jit(create, out_shardings=slot_shardings(mesh))()
        self._params = self._placed_params(params)
        self._stops, self._stop_sets, self._device_table = StopTable(self._token_bytes()), 0, None
        self._lengths = np.zeros(slots, np.int32)
        self._growing: dict[int, _Growing] = {}
        self._waiting: dict[int, Generation] = {}
        self._put_constants()
        self.statistics = SamplerStatistics()

    def _token_bytes(self) -> list[bytes]:
        """Bytes of every row of the embedding; models often have a few more rows than their tokenizer has tokens."""
        known = self._tokenizer.token_bytes
        return [*known, *[b""] * (self._config.vocabulary_size - len(known))]

    def _put_constants(self) -> None:
        self._eos = self._put(np.asarray(self._tokenizer.eos_ids, np.int32))
        self._wanted_count = self._put(np.int32(self._wanted))

    def _placed_params(self, params):
        """The sampler's own parameters: the ones given where these serve, else one copy in the compute dtype."""
        shardings = param_shardings(self._config, self._mesh)
        own = compute_parameters(self._config, jax.device_put(params, shardings))
        return jax.device_put(own, gathered(shardings)) if self._gather_parameters else own

    def _put(self, array: np.ndarray | np.generic, *axes: str):
        """The one way from host to device: small control arrays, placed explicitly."""
        sharding = logical_sharding(self._mesh, *axes) if axes else replicated(self._mesh)
        return jax.device_put(array, sharding)

    @property
    def running(self) -> int:
        """How many slots are sampling."""
        return len(self._growing) + len(self._waiting)

    def length(self, slot: int) -> int:
        """Tokens in a slot's context."""
        return int(self._lengths[slot])

    def set_params(self, params) -> None:
        """Samples with new parameters from now on; contexts and their caches are forgotten."""
        self._params = None  # so that the old copy's memory is free for the new one
        self._params = self._placed_params(params)
        self.free(range(self.slots))

    def free(self, slots: Iterable[int]) -> None:
        """Forgets some contexts, generations under way included; their slots can be filled anew."""
        for slot in slots:
            self._lengths[slot] = 0
            self._growing.pop(slot, None)
            self._waiting.pop(slot, None)

    def append(self, entries: Mapping[int, TokenIds]) -> None:
        """Puts environment tokens at the end of some contexts; `length + new tokens` must fit the context."""
        largest = self._append_tokens[-1]
        pieces = {slot: [ids[i : i + largest] for i in range(0, len(ids), largest)] for slot, ids in entries.items()}
        for index in range(max(map(len, pieces.values()), default=0)):
            now = {slot: each[index] for slot, each in pieces.items() if index < len(each)}
            for size in self._append_tokens:  # long and short ones apart, so that padding stays small
                slots = [slot for slot, ids in now.items() if _bucket(self._append_tokens, len(ids)) == size]
                shares = self._by_share(slots)
                most = max(map(len, shares))
                rows = min(self._append_rows, key=lambda rows: (-(-most // rows) * rows, -rows))
                for first in range(0, most, rows):
                    self._append({slot: now[slot] for share in shares for slot in share[first : first + rows]})

    def _by_share(self, slots: Iterable[int]) -> list[list[int]]:
        """The slots that each share of the devices holds."""
        shares: list[list[int]] = [[] for _ in range(self._shares)]
        for slot in slots:
            shares[slot // self._share].append(slot)
        return shares

    def _append(self, entries: Mapping[int, TokenIds]) -> None:
        shares = self._by_share(entries)
        shape = self._shares, _bucket(self._append_rows, max(map(len, shares)))
        time = _bucket(self._append_tokens, max(map(len, entries.values())))
        numbers, lengths = np.full(shape, self._share, np.int32), np.zeros(shape, np.int32)
        tokens, counts = np.zeros((*shape, time), np.int32), np.ones(shape, np.int32)
        for share, slots in enumerate(shares):
            for row, slot in enumerate(slots):
                ids = entries[slot]
                numbers[share, row], lengths[share, row] = slot % self._share, self._lengths[slot]
                tokens[share, row, : len(ids)], counts[share, row] = ids, len(ids)
                self._lengths[slot] += len(ids)
                self.statistics.appended_tokens += len(ids)
        window = _bucket(self._windows, int(self._lengths[list(entries)].max()))
        with jax.transfer_guard("disallow"):
            arrays = (self._put(array, "slots") for array in (numbers, lengths, tokens, counts))
            self._state = self._programs.append(window, self._params, self._state, *arrays)

    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copies one slot's context to free slots: a shared prompt is prefilled once."""
        numbers = np.full(self.slots, self.slots, np.int32)
        numbers[: len(targets)] = targets
        self._lengths[list(targets)] = self._lengths[source]
        window = _bucket(self._windows, self.length(source))
        with jax.transfer_guard("disallow"):
            arrays = self._put(np.int32(source)), self._put(numbers)
            self._state = self._programs.fork(window, self._state, *arrays)

    def begin(self, requests: Mapping[int, Generation]) -> None:
        """Lets some slots sample from the next `decode` on."""
        self._waiting.update(requests)

    def _begin(self) -> None:
        if not self._waiting:
            return
        arrays = {name: np.zeros(self.slots, dtype) for name, dtype in _BEGIN_DTYPES.items()}
        for slot, request in self._waiting.items():
            arrays["starting"][slot] = True
            arrays["automaton"][slot] = self._stops.start(request.stop)
            arrays["limits"][slot] = min(self.length(slot) + request.max_tokens, self.context)
            arrays["temperatures"][slot] = request.temperature
            arrays["top_ps"][slot] = request.top_p
            arrays["seeds"][slot], arrays["episodes"][slot] = request.seed, request.episode
            self._growing[slot] = _Growing(request)
        self._waiting = {}
        placed = Begin(**{name: self._put(array, "slots") for name, array in arrays.items()})
        self._state = self._programs.begin(self._state, placed)

    def decode(self) -> dict[int, Sampled]:
        """One block of tokens for every running slot; returns the generations that finished in it."""
        if not self.running:
            return {}
        with jax.transfer_guard("disallow"):
            self._begin()
            longest = int(self._lengths[list(self._growing)].max())
            window = _bucket(self._windows, min(longest + self._block, self.context))
            arguments = self._params, self._state, self._table(), self._eos, self._wanted_count
            self._state, report = self._programs.decode(window, *arguments)
            return self._collect(jax.device_get(report))

    def _table(self):
        if self._device_table is None or self._stop_sets != self._stops.sets:
            self._device_table = self._put(self._stops.table)
            self._stop_sets = self._stops.sets
        return self._device_table

    def _collect(self, report: Report) -> dict[int, Sampled]:
        finished = {}
        for slot in sorted(self._growing):
            growing, count = self._growing[slot], int(report.counts[slot])
            growing.tokens.append(report.tokens[slot, :count])
            growing.log_probabilities.append(report.log_probabilities[slot, :count])
            self._lengths[slot] += count
            self.statistics.sampled_tokens += count
            if report.reasons[slot] != CONTINUES:
                finished[slot] = self._finish(self._growing.pop(slot), int(report.reasons[slot]))
        self.statistics.decode_steps += int(report.steps)
        self.statistics.slot_steps += int(report.steps) * self.slots
        self.statistics.compiled_shapes = self._programs.count
        return finished

    def _finish(self, growing: _Growing, reason: int) -> Sampled:
        tokens = np.concatenate(growing.tokens)
        name = FINISH_REASONS[reason - 1]
        content = self._tokenizer.decode_bytes(tokens[:-1] if name == "eos" else tokens)
        stop = growing.request.stop if name == "stop" else ()
        return Sampled(tokens, np.concatenate(growing.log_probabilities), text_until_stop(content, stop), name)

    def warm_up(self, stops: Iterable[tuple[str, ...]] = ()) -> int:
        """Compiles every shape that a run can need, on throw-away content; returns how many there are."""
        for stop in stops:
            self._stops.start(stop)
        pad = self._tokenizer.pad_id
        for window in self._windows:
            for rows in self._append_rows:
                for time in self._append_tokens:
                    length = max(1, min(time, window - 1))
                    self._append_at(window, dict.fromkeys(range(min(rows, self.slots)), [pad] * length))
            self._lengths[:] = max(1, window - self._block - 1)
            self.fork(0, [])
            self.begin({0: Generation(max_tokens=1)})
            self.decode()
        self.free(range(self.slots))
        self.statistics = SamplerStatistics(compiled_shapes=self._programs.count)
        return self._programs.count

    def _append_at(self, window: int, entries: Mapping[int, TokenIds]) -> None:
        """Appends with the lengths that make this window be chosen."""
        length = len(next(iter(entries.values())))
        self._lengths[:] = window - length
        self._append(entries)


_BEGIN_DTYPES = {
    "starting": bool,
    "automaton": np.uint8,
    "limits": np.int32,
    "temperatures": np.float32,
    "top_ps": np.float32,
    "seeds": np.uint32,
    "episodes": np.uint32,
}


def _bucket(sizes: Sequence[int], needed: int) -> int:
    """The smallest compiled size that holds what is needed."""
    return next(size for size in sizes if size >= needed)
