"""The host side of the slots: batches requests into the compiled shapes and collects what was sampled.

One device program serves a whole shape, so this file is about choosing shapes: how many rows, how many tokens and which
window of the cache a call computes. No choice changes a token.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from lcrag.errors import UserError
from lcrag.policy import DecoderConfig, TokenIds, Tokenizer, logical_sharding, make_mesh, replicated
from lcrag.sampling.settings import (
    FINISH_REASONS,
    Sampled,
    SamplerConfig,
    SamplerStatistics,
    SamplingParameters,
    SlotParameters,
)
from lcrag.sampling.slots import CONTINUES, DecodeReport, compiled_functions
from lcrag.sampling.stop import StopTable, text_until_stop


@dataclasses.dataclass
class _Unfinished:
    """A running generation."""

    request: SamplingParameters
    tokens: list[np.ndarray] = dataclasses.field(default_factory=list)
    log_probabilities: list[np.ndarray] = dataclasses.field(default_factory=list)


class Sampler:
    """Samples many contexts at once in a fixed number of device slots; contexts persist across turns.

    Args:
      config: The decoder.
      params: Its parameters.
      tokenizer: Provides the bytes of tokens and the end-of-sequence ids.
      settings: Sizes and compiled shapes.
      mesh: Devices; one device if None.
    """

    def __init__(
        self,
        config: DecoderConfig,
        params,
        tokenizer: Tokenizer,
        settings: SamplerConfig,
        mesh: Mesh | None = None,
    ):
        mesh = mesh or make_mesh(devices=jax.devices()[:1])
        slots, context = settings.slots, settings.context
        if context > config.max_positions:
            raise UserError(
                f"context={context} exceeds the {config.max_positions} positions that the model was made for"
            )
        self._shares = mesh.shape["data"] * mesh.shape["fsdp"]
        self._share = slots // self._shares
        if slots % self._shares:
            raise UserError(f"slots={slots} cannot be spread over the mesh {dict(mesh.shape)}: make it a multiple")
        self.slots, self.context, self.statistics = slots, context, SamplerStatistics()
        self._config, self._tokenizer, self._mesh = config, tokenizer, mesh
        self._block = settings.block
        self._windows = sorted({min(each, context) for each in settings.windows} | {context})
        self._append_rows = self._per_share(settings.append_rows or (8, slots))
        self._decode_rows = self._per_share([*settings.decode_rows, slots])
        self._append_tokens = sorted(set(settings.append_tokens))
        self._form = settings.form(config, mesh)
        self._compiled = compiled_functions(self._form, slots, context, settings.block)
        self._state = self._compiled.empty(slots, context)
        self._params = self._form.placed(params)
        # models often have a few more embedding rows than their tokenizer has tokens
        unused = config.vocabulary_size - len(tokenizer.token_bytes)
        self._stops, self._stop_sets_on_device = StopTable([*tokenizer.token_bytes, *[b""] * unused]), 0
        self._device_table: Array | None = None
        self._lengths = np.zeros(slots, np.int32)
        self._unfinished: dict[int, _Unfinished] = {}
        self._waiting: dict[int, SamplingParameters] = {}
        self._eos = self._put(np.asarray(tokenizer.eos_ids, np.int32))
        self._min_finished_share = settings.min_finished_share

    def _per_share(self, rows: Iterable[int]) -> list[int]:
        return sorted({-(-min(each, self.slots) // self._shares) for each in rows})

    def _put(self, arrays, *axes: str):
        """Copies small control arrays from host to device, the only such transfer."""
        sharding = logical_sharding(self._mesh, *axes) if axes else replicated(self._mesh)
        return jax.device_put(arrays, sharding)

    @property
    def running(self) -> int:
        """Number of slots that are sampling."""
        return len(self._unfinished) + len(self._waiting)

    def length(self, slot: int) -> int:
        """Number of tokens in a slot's context."""
        return int(self._lengths[slot])

    def set_params(self, params) -> None:
        """Replaces the parameters and drops all contexts, whose keys and values the old parameters computed."""
        self.drop_params()
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
        """Waits until the devices have finished all enqueued work."""
        jax.block_until_ready(self._state)

    def append(self, entries: Mapping[int, TokenIds]) -> None:
        """Appends environment tokens to some contexts; the new lengths must fit the context."""
        started = time.monotonic()
        pieces = {slot: _pieces(ids, tuple(self._append_tokens)) for slot, ids in entries.items()}
        for index in range(max(map(len, pieces.values()), default=0)):
            now = {slot: each[index] for slot, each in pieces.items() if index < len(each)}
            for size in self._append_tokens:  # long and short pieces separately, to keep padding small
                slots = [slot for slot, ids in now.items() if _bucket(self._append_tokens, len(ids)) == size]
                shares = self._by_share(slots)
                first = 0
                for rows in _split(max(map(len, shares)), tuple(self._append_rows)):
                    self._append({slot: now[slot] for share in shares for slot in share[first : first + rows]})
                    first += rows
        self.statistics.append_seconds += time.monotonic() - started

    def _by_share(self, slots: Iterable[int]) -> list[list[int]]:
        """Groups slots by the share of the devices that holds them."""
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
        self.statistics.append_positions += tokens.size
        window = _bucket(self._windows, int(self._lengths[list(entries)].max()))
        with jax.transfer_guard("disallow"):
            arrays = (self._put(array, "slots") for array in (numbers, lengths, tokens, counts))
            self._state = self._compiled("append", window, self._params, self._state, *arrays)

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
                    for column, value in zip(
                        parameters, (self._stops.start(request.stop), limit, *others), strict=True
                    ):
                        column[slot] = value
                    self._unfinished[slot] = _Unfinished(request)
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
        rows: np.ndarray | None = None
        # On several devices, writing back into contexts longer than the window needs the rows of each share.
        if size < self._share or (self._shares > 1 and window < self.context):
            rows = np.full((self._shares, size), self._share, np.int32)
            for row, slots in zip(rows, shares, strict=True):
                row[: len(slots)] = np.array(slots, np.int32) % self._share
        fewer = self._shares * max((each for each in self._decode_rows if each < size), default=0)
        min_finished = min(min_finished, max(1, len(self._unfinished) - fewer))
        if self._device_table is None or self._stop_sets_on_device != self._stops.sets:
            self._device_table, self._stop_sets_on_device = self._put(self._stops.table), self._stops.sets
        arguments = [self._params, self._state, self._device_table, self._eos, self._put(np.int32(min_finished))]
        if rows is not None:
            arguments.append(self._put(rows, "slots"))
        self._state, on_device = self._compiled("decode", window, *arguments)
        report: DecodeReport = jax.device_get(on_device)

        finished, row_of = {}, {slot: slot for slot in range(self.slots)}
        if rows is not None:
            numbers = rows + self._share * np.arange(self._shares)[:, None]
            row_of = {int(slot): row for row, slot in enumerate(numbers.flat) if rows.flat[row] < self._share}
        for slot in sorted(self._unfinished):
            row, unfinished = row_of[slot], self._unfinished[slot]
            count = int(report.counts[row])
            unfinished.tokens.append(report.tokens[row, :count])
            unfinished.log_probabilities.append(report.log_probabilities[row, :count])
            self._lengths[slot] += count
            self.statistics.sampled_tokens += count
            if report.reasons[row] != CONTINUES:
                del self._unfinished[slot]
                reason = FINISH_REASONS[int(report.reasons[row]) - 1]
                tokens = np.concatenate(unfinished.tokens)
                content = self._tokenizer.decode_bytes(tokens[:-1] if reason == "eos" else tokens)
                text = text_until_stop(content, unfinished.request.stop if reason == "stop" else ())
                finished[slot] = Sampled(tokens, np.concatenate(unfinished.log_probabilities), text, reason)
        self.statistics.decode_steps += int(report.steps)
        self.statistics.slot_steps += int(report.steps) * len(report.counts)
        self.statistics.compiled_shapes = self._compiled.count
        return finished

    def warm_up(self, stops: Iterable[tuple[str, ...]] = ()) -> int:
        """Compiles every shape that a run can need, on dummy data; returns their number."""
        for stop in stops:
            self._stops.start(stop)
        pad = self._tokenizer.pad_id
        for window in self._windows:
            for rows, tokens in itertools.product(self._append_rows, self._append_tokens):
                length = max(1, min(tokens, window - 1))
                self._lengths[:] = window - length  # so that this window is chosen
                self._append(dict.fromkeys(range(min(rows, self.slots)), [pad] * length))
            length = max(1, window - self._block - 1)
            self._lengths[:] = length
            self.fork(0, [])
            for running in self._decode_rows:
                self._lengths[:] = length
                self.begin(dict.fromkeys(range(running), SamplingParameters(max_tokens=1)))
                self.decode()
        self.free(range(self.slots))
        self.statistics = SamplerStatistics(compiled_shapes=self._compiled.count)
        return self._compiled.count


def _bucket(sizes: Sequence[int], needed: int) -> int:
    """Returns the smallest compiled size that is at least `needed`."""
    return next(size for size in sizes if size >= needed)


def _pieces(ids: TokenIds, sizes: tuple[int, ...]) -> list[TokenIds]:
    """Cuts tokens into pieces that fit compiled sizes with the least padding."""
    ends = list(itertools.accumulate(_split(len(ids), sizes)))
    return [ids[begin:end] for begin, end in itertools.pairwise([0, *ends])]


@functools.cache
def _split(count: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Splits a number of rows or tokens into compiled sizes, the largest first, with the least padding.

    Each additional part costs as much as padding of the smallest size, because it is another call with fewer rows.
    """
    if count <= 0:
        return ()
    if count > sizes[-1]:
        full = count // sizes[-1]
        return (sizes[-1],) * full + _split(count - full * sizes[-1], sizes)
    enough = next(size for size in sizes if size >= count)
    choices = [(size, *_split(count - size, sizes)) for size in sizes if size <= enough]
    best = min(choices, key=lambda parts: (sum(parts) + len(parts) * sizes[0], len(parts)))
    return tuple(sorted(best, reverse=True))
