"""Jitted comparisons of padded rows, the kernels of all text rewards.

Each takes `[rows, width]` arrays as `string_arrays` lays them out, and is quadratic in the widths: answers are short,
and comparing all pairs of positions vectorises where sorting does not.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt8, UInt32

from lcrag.rewards.string_arrays import PADDING

# A gram's high word is at most 0x10FFFF << 11 | 0x7FF, so these never equal one.
_NO_LEFT_GRAM = np.uint32(0xFFFFFFFF)
_NO_RIGHT_GRAM = np.uint32(0xFFFFFFFE)

Unit = tuple[UInt32[Array, "rows _"], UInt32[Array, "rows _"]]


def _following(codes: UInt32[Array, "rows width"], distance: int) -> UInt32[Array, "rows width"]:
    return jnp.pad(codes[:, distance:], ((0, 0), (0, distance)), constant_values=PADDING)


def _grams(codes: UInt32[Array, "rows width"], absent: np.uint32) -> Unit:
    """Returns the character 3-gram that starts at each position as two words; `absent` where none starts.

    A code point has 21 bits and a gram 63, so grams are exact, not hashed. Padding separates words; a word of one or
    two characters is one gram.
    """
    first, second, third = codes, _following(codes, 1), _following(codes, 2)
    third = jnp.where(second == PADDING, PADDING, third)
    starts_word = jnp.pad(codes[:, :-1], ((0, 0), (1, 0)), constant_values=PADDING) == PADDING
    exists = (first != PADDING) & ((third != PADDING) | starts_word)
    high = (first << 11) | (second >> 10)
    low = ((second & 0x3FF) << 21) | third
    return jnp.where(exists, high, absent), low


def _equal(left: Unit, right: Unit) -> Bool[Array, "rows right left"]:
    high = right[0][:, :, None] == left[0][:, None, :]
    return high & (right[1][:, :, None] == left[1][:, None, :])


def _rank(units: Unit) -> Int32[Array, "rows width"]:
    """Returns how many equal units precede each one; 0 marks the first occurrence."""
    width = units[0].shape[1]
    earlier = jnp.tril(jnp.ones((width, width), bool), -1)
    return (_equal(units, units) & earlier).sum(-1, dtype=jnp.int32)


def _counts(left: Unit, right: Unit, multiset: bool) -> Int32[Array, "rows 2"]:
    """Returns (units of the right found on the left, units of the right), as multisets or sets."""
    copies, rank = _equal(left, right).sum(-1, dtype=jnp.int32), _rank(right)
    exists = right[0] != _NO_RIGHT_GRAM
    if not multiset:
        exists &= rank == 0
    found = exists & (rank < copies)
    return jnp.stack([found.sum(-1, dtype=jnp.int32), exists.sum(-1, dtype=jnp.int32)], axis=-1)


@functools.partial(jax.jit, static_argnames="multiset")
def common_grams(
    left: UInt32[Array, "rows left"], right: UInt32[Array, "rows right"], multiset: bool = False
) -> Int32[Array, "rows 2"]:
    """Counts the character 3-grams of the right that occur in the left, both rows of code points.

    Args:
      left: Code points; `PADDING` fills a row and separates words whose grams must not mix.
      right: The same, of any other width.
      multiset: Whether a repeated gram counts as often as it occurs.

    Returns:
      (grams of the right found on the left, grams of the right).
    """
    return _counts(_grams(left, _NO_LEFT_GRAM), _grams(right, _NO_RIGHT_GRAM), multiset)


@jax.jit
def common_words(left: UInt32[Array, "rows left"], right: UInt32[Array, "rows right"]) -> Int32[Array, "rows 2"]:
    """Returns (words of the right found on the left, words of the right) as multisets, for rows of word numbers."""
    left_words = jnp.where(left == PADDING, _NO_LEFT_GRAM, left)
    right_words = jnp.where(right == PADDING, _NO_RIGHT_GRAM, right)
    return _counts((left_words, jnp.zeros_like(left)), (right_words, jnp.zeros_like(right)), multiset=True)


@jax.jit
def same(left: UInt32[Array, "rows left"], right: UInt32[Array, "rows right"]) -> Bool[Array, " rows"]:
    """Whether two rows are the same string, and not empty."""
    if left.shape != right.shape:  # a width is a function of the length
        return jnp.zeros(left.shape[0], bool)
    return (left == right).all(-1) & (right[:, 0] != PADDING)


@jax.jit
def contains(left: UInt32[Array, "rows left"], right: UInt32[Array, "rows right"]) -> Bool[Array, " rows"]:
    """Whether the right row's string, if it is not empty, occurs in the left row's."""
    rows, width = left.shape
    length = right.shape[1]
    extended = jnp.pad(left, ((0, 0), (0, length)), constant_values=PADDING)

    def one_character(offset, matches):
        wanted = jax.lax.dynamic_slice_in_dim(right, offset, 1, axis=1)
        found = jax.lax.dynamic_slice_in_dim(extended, offset, width, axis=1)
        return matches & ((found == wanted) | (wanted == PADDING))

    matches = jax.lax.fori_loop(0, length, one_character, jnp.ones((rows, width), bool))
    return matches.any(-1) & (right[:, 0] != PADDING)


@jax.jit
def common_in_groups(incidence: UInt8[Array, "groups size grams"]) -> Int32[Array, "groups size size"]:
    """Returns how many grams any two members of a group share; the diagonal is each member's own count.

    Args:
      incidence: 1 where a member's answer has the gram of that number. Float32 sums of fewer than 2**24 ones are exact.
    """
    flags = incidence.astype(jnp.float32)
    return jnp.einsum("gsv,gtv->gst", flags, flags, precision="highest").astype(jnp.int32)
