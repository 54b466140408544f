"""Counts the units (character 3-grams or words) that texts share with the first text of their group.

Every unit gets a number without collisions, with the number of its text in the group as the lowest bits. The numbers of
a group are sorted as one row, in which equal units are adjacent, those of the first text first. Rows of up to 256
numbers are sorted by NumPy's vectorised networks, several times as fast as one long array.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt, UInt32
from numpy.lib.stride_tricks import sliding_window_view

from lcrag.rewards.code_points import SEPARATOR, SPACE

GRAM_LENGTH = 3
_CELLS = 1 << 15  # numbers in a block of rows: they stay in the processor's cache


class Units(NamedTuple):
    """The units of groups of texts as numbers, uint32 or uint64."""

    # Each unit's number, from 1, shifted by `bits`, plus its text's number in the group; 0 where no unit is.
    numbers: UInt[np.ndarray, " entries"]
    bits: int  # width of a text's number
    sizes: Int[np.ndarray, " groups"]  # texts of each group
    counts: Int[np.ndarray, " texts"]  # units of each text
    widths: Int[np.ndarray, " groups"]  # entries of `numbers` that belong to each group

    @property
    def firsts(self) -> Int[np.ndarray, " groups"]:
        """The place of each group's first text."""
        return np.cumsum(self.sizes) - self.sizes


class Repeats(NamedTuple):
    """Adjacent equal units in the sorted units of some groups."""

    groups: Int[np.ndarray, " groups"]
    rows: Int[np.ndarray, " repetitions"]  # index into `groups`
    texts: Int[np.ndarray, " repetitions"]  # index of each repetition's text among all texts
    texts_before: Int[np.ndarray, " repetitions"]  # the same of the entry before it, which has the same unit
    begins: Bool[np.ndarray, " repetitions"]  # whether that entry is the first one with this unit
    equal: Bool[np.ndarray, " repetitions"]  # whether both entries are of the same text


def repeats(units: Units) -> Iterator[Repeats]:
    """Yields the repetitions of units within their groups, for blocks of groups of similar widths."""
    widths, firsts = units.widths, units.firsts
    padded = np.append(units.numbers, np.zeros(widths.max(initial=0), units.numbers.dtype))
    mask = padded.dtype.type((1 << units.bits) - 1)
    starts, order, begin = np.cumsum(widths) - widths, np.argsort(widths, kind="stable"), 0
    while begin < len(order):
        groups = order[begin : begin + max(1, _CELLS // int(max(1, widths[order[begin]])))]
        begin += len(groups)
        own = widths[groups]
        fewest, width = int(own[0]), int(own[-1])
        numbers = sliding_window_view(padded, width)[starts[groups]]
        numbers[:, fewest:][np.arange(fewest, width) >= own[:, None]] = 0
        numbers.sort(axis=1)
        before = numbers[:, :-1]
        places = np.flatnonzero((numbers[:, 1:] ^ before <= mask) & (before > mask))
        rows = places // max(1, width - 1)
        flat, texts, places = numbers.ravel(), firsts[groups][rows], places + rows
        one, other = flat[places], flat[places + 1]
        text, before = (texts + (each & mask).astype(np.int64) for each in (other, one))
        yield Repeats(groups, rows, text, before, np.diff(places, prepend=-2) > 1, one == other)


def gram_units(
    codes: UInt32[np.ndarray, " codes"],
    sizes: Int[np.ndarray, " groups"],
    *,
    words_apart: bool = False,
    short: bool = True,
) -> Units:
    """Returns the character 3-grams of groups of texts.

    Args:
      codes: Code points of the normalised texts, group by group, a separator after each.
      sizes: Number of texts of each group, at least 1.
      words_apart: Whether 3-grams end at spaces; `short` then refers to words instead of texts.
      short: Whether a text of one or two characters counts as one 3-gram; otherwise it has none.
    """
    ends = np.flatnonzero(codes == SEPARATOR)
    members, bits = _members(sizes)
    digits, base = _digits(codes, words_apart, 1 << bits)
    breaks = np.flatnonzero(digits == 0) if words_apart else ends
    lengths = np.diff(breaks, prepend=-1) - 1
    numbers = np.zeros_like(digits)
    grams = numbers[:-2]
    np.multiply(digits[:-2], base, out=grams)
    grams += digits[1:-1]
    grams *= base
    grams += digits[2:]
    last = breaks - 1
    single = last[lengths == 1]
    numbers[single] = digits[single] * base * base
    numbers <<= bits
    numbers |= np.repeat(members.astype(digits.dtype), np.diff(ends, prepend=-1))
    numbers[breaks] = numbers[last[lengths > short]] = 0
    numbers[last[lengths > 1 + short] - 1] = 0
    each = np.where(lengths < GRAM_LENGTH, np.minimum(lengths, 1) * short, lengths - GRAM_LENGTH + 1)
    if words_apart:
        each = np.bincount(np.searchsorted(ends, breaks), each, len(ends)).astype(np.int64)
    return Units(numbers, bits, sizes, each, np.diff(ends[np.cumsum(sizes) - 1], prepend=-1))


def word_units(texts: Sequence[str], sizes: Int[np.ndarray, " groups"]) -> Units:
    """Returns the words of groups of texts; the arguments are as in `gram_units`."""
    words = [text.split() for text in texts]
    counts = np.fromiter(map(len, words), np.int64, len(words))
    known: dict[str, int] = {}
    flat = (known.setdefault(word, len(known) + 1) for word in itertools.chain.from_iterable(words))
    members, bits = _members(sizes)
    numbers = np.fromiter(flat, np.int64) << bits | np.repeat(members, counts)
    numbers = numbers.astype(_dtype(len(known) + 1 << bits))
    widths = np.diff(np.cumsum(counts)[np.cumsum(sizes) - 1], prepend=0)
    return Units(numbers, bits, sizes, counts, widths)


def shared(units: Units, multisets: bool = False) -> tuple[Int[np.ndarray, " texts"], Int[np.ndarray, " texts"]]:
    """Counts the units that each text shares with the first text of its group; in `multisets` each repetition counts.

    Returns:
      (number of the text's units that the first text has, 0 for the first itself; number of the text's units).
    """
    found, wanted, firsts = np.zeros_like(units.counts), units.counts.copy(), units.firsts
    for each in repeats(units):
        first, number = firsts[each.groups][each.rows], np.arange(len(each.rows))
        begin = np.where(each.begins, number, 0)
        # One after the last copy of the first text, or where the unit begins if the first text lacks it.
        end = np.maximum.accumulate(np.where(~each.equal & (each.texts_before == first), number + 1, begin))
        copies_of_first = end - np.maximum.accumulate(begin)
        if multisets:
            copies_before = number + 1 - np.maximum.accumulate(np.where(each.equal, begin, number + 1))
            hits = (each.texts != first) & (copies_before < copies_of_first)
        else:
            hits = ~each.equal & (copies_of_first > 0)
            wanted -= np.bincount(each.texts[each.equal], minlength=len(wanted))
        found += np.bincount(each.texts[hits], minlength=len(found))
    return found, wanted


def _members(sizes: Int[np.ndarray, " groups"]) -> tuple[Int[np.ndarray, " texts"], int]:
    """Returns the number of each text in its group, and the bits that hold it."""
    members = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return members, int(sizes.max(initial=1) - 1).bit_length()


def _digits(
    codes: UInt32[np.ndarray, " codes"], words_apart: bool, factor: int
) -> tuple[UInt[np.ndarray, " codes"], int]:
    """Numbers the characters that occur from 1, separators 0.

    Returns:
      (a number of each code point, in a dtype that holds `factor` numbers of grams; the base of gram numbers).
    """
    index = codes.astype(np.intp)
    present = np.zeros(int(codes.max(initial=SPACE)) + 1, bool)
    present[index] = True
    present[[SEPARATOR, SPACE] if words_apart else SEPARATOR] = False
    characters = np.flatnonzero(present)
    base = len(characters) + 1
    table = np.zeros(len(present), _dtype(base**GRAM_LENGTH * factor))
    table[characters] = np.arange(1, base)
    return table.take(index), base


def _dtype(numbers: int) -> type[np.uint32 | np.uint64]:
    return np.uint32 if numbers < 1 << 32 else np.uint64
