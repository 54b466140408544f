"""Strings as padded arrays of code points, in few shapes.

A jitted kernel compiles once per shape, so pairs of strings are laid out in blocks. The width of either side is a power
of two, at least 16; a block has 4,096 or 256 rows, or 16 where comparing all positions would need too much memory.
Strings of at most 64 characters, nearly all answers, need at most 18 shapes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Int, UInt32

PADDING = 0x110000
"""The first number beyond Unicode; like every code point it fits in 21 bits."""

NARROWEST = 16
BLOCK_ROWS = (4096, 256)
LONG_BLOCK_ROWS = 16
BLOCK_CELLS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Packed:
    """Sequences of numbers below 2**21, end to end.

    Attributes:
      numbers: All sequences, concatenated.
      starts: Offset of each sequence.
      lengths: Length of each sequence.
    """

    numbers: UInt32[np.ndarray, " total"]
    starts: Int[np.ndarray, " sequences"]
    lengths: Int[np.ndarray, " sequences"]

    def rows(self, which: Int[np.ndarray, " rows"], width: int) -> UInt32[np.ndarray, "rows width"]:
        """Returns the sequences at indices `which`, padded on the right to `width`."""
        column = np.arange(width)
        index = self.starts[which, None] + column
        inside = column < self.lengths[which, None]
        return np.where(inside, self.numbers.take(index, mode="clip"), np.uint32(PADDING))


def pack_sequences(numbers: UInt32[np.ndarray, " total"], lengths: Sequence[int]) -> Packed:
    sizes = np.asarray(lengths, np.int64)
    # One number at least, so that taking from no text at all stays inside the array.
    return Packed(np.append(numbers, np.uint32(PADDING)), np.cumsum(sizes) - sizes, sizes)


def pack(texts: Sequence[str]) -> Packed:
    """Returns the code points of every text."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    return pack_sequences(np.frombuffer(joined, "<u4"), [len(text) for text in texts])


def widths(lengths: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Returns the width that each length is padded to: the next power of two, at least 16."""
    exponents = np.ceil(np.log2(np.maximum(lengths, NARROWEST))).astype(np.int64)
    return 1 << exponents


def blocks(
    left_lengths: Int[np.ndarray, " pairs"], right_lengths: Int[np.ndarray, " pairs"]
) -> Iterator[tuple[Int[np.ndarray, " rows"], int, int, int]]:
    """Splits pairs into blocks of few shapes: (indices of pairs, left width, right width, rows)."""
    left_widths, right_widths = widths(left_lengths), widths(right_lengths)
    for left, right in itertools.product(np.unique(left_widths).tolist(), np.unique(right_widths).tolist()):
        members = np.flatnonzero((left_widths == left) & (right_widths == right))
        fitting = [rows for rows in BLOCK_ROWS if rows * max(left, right) * right <= BLOCK_CELLS] or [LONG_BLOCK_ROWS]
        begin = 0
        while begin < len(members):
            rows = next((rows for rows in fitting if len(members) - begin > rows // 2), fitting[-1])
            yield members[begin : begin + rows], left, right, rows
            begin += rows


def map_pairs(
    kernel: Callable[[jax.Array, jax.Array], jax.Array],
    left: Packed,
    right: Packed,
    pairs: tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]],
) -> np.ndarray:
    """Applies a jitted kernel to pairs of sequences.

    Args:
      kernel: Takes padded rows `[rows, left width]` and `[rows, right width]`, returns `[rows, ...]`.
      left: Sequences of the left side.
      right: Sequences of the right side.
      pairs: Indices into `left` and, equally many, into `right`.

    Returns:
      The kernel's results in the order of `pairs`. All blocks are dispatched before the first result is awaited; the
      transfers are explicit.
    """
    left_index, right_index = pairs
    pending = []
    for members, left_width, right_width, rows in blocks(left.lengths[left_index], right.lengths[right_index]):
        padded = np.resize(members, rows)  # a short block repeats its own rows; the copies are dropped below
        operands = (left.rows(left_index[padded], left_width), right.rows(right_index[padded], right_width))
        pending.append((members, kernel(*jax.device_put(operands))))
    results = jax.device_get([result for _, result in pending])
    if not results:
        return np.zeros((0, *_result_shape(kernel)), np.int32)
    out = np.empty((len(left_index), *results[0].shape[1:]), results[0].dtype)
    for (members, _), result in zip(pending, results, strict=True):
        out[members] = result[: len(members)]
    return out


def _result_shape(kernel: Callable[[jax.Array, jax.Array], jax.Array]) -> tuple[int, ...]:
    empty = jax.ShapeDtypeStruct((0, NARROWEST), np.uint32)
    return jax.eval_shape(kernel, empty, empty).shape[1:]
